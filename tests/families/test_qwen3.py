"""Qwen3 as a text encoder: its graph gives torch's states, has the layers that they take, and none above."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime
import pytest
import torch

from olivelike.errors import SourceError
from olivelike.families.family import TextPart
from olivelike.families.networks import interface_of
from olivelike.families.supported import check_network
from olivelike.model import Architecture
from olivelike.model.components import TAKEN_STATES
from olivelike.testing.models import traced_graph

CONFIG = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "tie_word_embeddings": True,
    TAKEN_STATES: [0, 2, 3],
}  # fmt: skip
QWEN = Architecture("text_encoder", "transformers", "Qwen3ForCausalLM", CONFIG)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen") / "model.onnx"
    path.write_bytes(traced_graph(QWEN).to_bytes())
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def network():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = Qwen3ForCausalLM(Qwen3Config(**CONFIG)).eval()
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return made


@pytest.mark.parametrize("shape", [(1, 512, 480), (3, 7, 2), (2, 33, 0), (1, 1, 0), (2, 100, 64)], ids=str)
def test_states_are_those_of_torch_at_any_length(session, network, shape):
    batch, length, filled = shape
    random = np.random.default_rng(0)
    ids = random.integers(0, CONFIG["vocab_size"], (batch, length), np.int32)
    mask = np.ones_like(ids)
    mask[:, length - filled :] = 0
    with torch.no_grad():
        found = network.double()(torch.tensor(ids), torch.tensor(mask), output_hidden_states=True, use_cache=False)
    expected = torch.cat([found.hidden_states[number] for number in CONFIG[TAKEN_STATES]], dim=-1).numpy()
    stored = {name: value.float().numpy() for name, value in network.state_dict().items()}
    weights = {one.name: stored[one.name] for one in session.get_inputs()[2:]}
    (states,) = session.run(None, {"input_ids": ids, "attention_mask": mask, **weights})
    assert np.abs(states - expected).max() <= 1e-5 * np.abs(expected).max()


def test_layers_above_the_last_that_is_taken_fall_away_and_operators_say_what_they_are(session):
    graph = traced_graph(QWEN).to_ir().graph
    names = [value.name for value in graph.inputs]
    assert names[:2] == [one.name for one in interface_of(QWEN).inputs]
    assert {name.split(".")[2] for name in names if name.startswith("model.layers.")} == {"0", "1", "2"}
    assert "model.norm.weight" not in names
    assert "lm_head.weight" not in names
    counts = Counter(node.op_type for node in graph)
    assert (counts["RMSNormalization"], counts["RotaryEmbedding"], counts["Attention"]) == (12, 6, 3)
    assert counts["Softmax"] == 0
    assert max(one.const_value.nbytes for one in graph.initializers.values()) <= 64


def test_a_family_marks_the_states_that_it_takes():
    part = TextPart("text_encoder", "tokenizer", 96, states=lambda layers: (layers // 4, layers // 2))
    assert part.marked({"num_hidden_layers": 36}) == {"num_hidden_layers": 36, TAKEN_STATES: [9, 18]}
    assert part.marked({}) == {}
    assert part.output == "hidden_states"
    plain = TextPart("text_encoder", "tokenizer", 96)
    assert (plain.marked(CONFIG), plain.output) == (CONFIG, "last_hidden_state")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({TAKEN_STATES: [9, 18, 27]}, "has 6 layers, and the denoiser takes the states behind number 27"),
        ({TAKEN_STATES: True}, "`taken_states: true`, where a list of layers' numbers"),
        ({TAKEN_STATES: [None]}, r"`taken_states: \[null\]`"),
        ({"use_sliding_window": True}, "`use_sliding_window: true` is not supported"),
        ({"num_key_value_heads": 0}, "`num_key_value_heads: 0`"),
        ({"num_key_value_heads": 3}, "4 heads of width 16 and 3 of keys"),
        ({"head_dim": 15}, "where the width is even"),
        ({"rope_theta": 0}, "`rope_theta: 0`, where a number above 1"),
        ({"rope_parameters": {"rope_theta": "x"}}, '`rope_theta: "x"`'),
    ],
    ids=str,
)
def test_a_network_that_does_not_fit_is_refused(change, said):
    with pytest.raises(SourceError, match=said):
        check_network("text_encoder", "Qwen3ForCausalLM", {**CONFIG, **change})
