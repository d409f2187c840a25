"""Networks that are traced with RMS norms and rotary embeddings as operators compute what their library computes."""

from __future__ import annotations

from collections import Counter
from types import MethodType

import diffusers
import pytest
import torch
import transformers
from diffusers.models.embeddings import apply_rotary_emb

from olivelike.families.networks.operators import rotary, with_operators
from olivelike.testing.models import load_model, traced_graph
from tests.fixtures.little_transformers import little_transformer

_JOINT = {
    "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 3,
    "joint_attention_dim": 24, "guidance_embeds": False,
}  # fmt: skip


def ids(count, axes):
    return torch.randint(0, 9, (count, axes), generator=torch.Generator().manual_seed(0))


def seeded(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def flux2():
    network = diffusers.Flux2Transformer2DModel(**_JOINT, axes_dims_rope=(4, 4, 4, 4), timestep_guidance_channels=16)
    return network, {"hidden_states": seeded(2, 6, 16), "encoder_hidden_states": seeded(2, 3, 24), "guidance": None,
        "timestep": torch.tensor([0.3, 0.8]).double(), "img_ids": ids(6, 4), "txt_ids": ids(3, 4)}  # fmt: skip


def flux():
    network = diffusers.FluxTransformer2DModel(**_JOINT, axes_dims_rope=(4, 4, 8), pooled_projection_dim=12)
    return network, {"hidden_states": seeded(2, 6, 16), "encoder_hidden_states": seeded(2, 3, 24), "guidance": None,
        "timestep": torch.tensor([0.3, 0.8]).double(), "pooled_projections": seeded(2, 12),
        "img_ids": ids(6, 3).double(), "txt_ids": ids(3, 3).double()}  # fmt: skip


def qwen3():
    config = transformers.Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=50,
    )  # fmt: skip
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    return transformers.Qwen3Model(config), {"input_ids": ids(2, 7), "attention_mask": mask, "use_cache": False}


def gemma2():
    """Return Gemma 2, whose norms have a forward of their own as `Network.as_operators` gives it."""
    config = transformers.Gemma2Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=50,
    )  # fmt: skip
    network = transformers.Gemma2Model(config)
    for module in network.modules():
        if type(module).__name__ == "Gemma2RMSNorm":
            module.forward = MethodType(type(module).forward, module)
    return network, {"input_ids": ids(2, 7), "use_cache": False}


def t5():
    config = transformers.T5Config(d_model=32, d_ff=48, d_kv=8, num_heads=4, num_layers=2, vocab_size=50)
    return transformers.T5EncoderModel(config), {"input_ids": ids(2, 7)}


@pytest.mark.parametrize(
    ("make", "rotaries", "norms"), [(flux2, 4, 6), (flux, 4, 6), (qwen3, 4, 9), (t5, 0, 5), (gemma2, 4, 0)]
)
def test_operators_compute_what_the_library_computes(make, rotaries, norms, monkeypatch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        network, inputs = make()
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, 0.1 if parameter.ndim > 1 else 1.0, 0.2)
    network = network.double().eval()
    calls = Counter()
    for owner, name in ((torch.onnx.ops, "rotary_embedding"), (torch.nn.functional, "rms_norm")):
        own = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, own=own, name=name, **k: calls.update([name]) or own(*a, **k))
    with torch.no_grad():
        expected = network(**inputs)[0]
        calls.clear()
        with with_operators(network):
            actual = network(**inputs)[0]
        assert calls == Counter(rotary_embedding=rotaries, rms_norm=norms) - Counter()
        # Their own norms compute in float32, also in networks of float64.
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
        calls.clear()
        network(**inputs)
        assert not calls["rotary_embedding"]


@pytest.mark.parametrize("sequence_dim", [1, 2])
@pytest.mark.parametrize("pairs", [-1, -2])
def test_rotary_embeddings_are_those_of_diffusers(pairs, sequence_dim):
    x, angles = seeded(2, 5, 3, 8), seeded(5, 4)
    whole = angles.repeat_interleave(2, dim=1) if pairs == -1 else torch.cat([angles, angles], -1)
    given = x if sequence_dim == 1 else x.transpose(1, 2)
    expected = apply_rotary_emb(given.float(), (whole.cos(), whole.sin()), True, pairs, sequence_dim)
    turned = rotary(x, angles.cos(), angles.sin(), interleaved=pairs == -1)
    torch.testing.assert_close(turned.float(), expected if sequence_dim == 1 else expected.transpose(1, 2))


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        ("text_encoder_3", {"RMSNormalization": 5, "ReduceMean": 0}),
        ("transformer", {"RMSNormalization": 14, "ReduceMean": 0}),
    ],
)
def test_exported_graphs_have_the_operators(component, expected):
    graph = traced_graph(load_model(little_transformer("sd3"), component).architecture)
    found = Counter(node.op_type for node in graph.to_ir().graph)
    assert {name: found[name] for name in expected} == expected
