"""Networks of FLUX.2 as graphs: torch's own numbers at any size, length and batch; what is too large is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from olivelike.errors import SourceError
from olivelike.families import family_of_folder
from olivelike.families.networks.flux2_transformer import parameters
from olivelike.families.supported import check_network
from olivelike.measure.network_sizes import Case
from olivelike.testing import compare_with_torch
from olivelike.testing.models import load_model, traced_graph
from tests.fixtures.little_transformers import little_transformer

CASES = (Case(1, 2, 4, 1), Case(3, 6, 2, 256), Case(1, 16, 40, 50), Case(2, 24, 8, 9), Case(1, 32, 32, 512))
"""None of them was traced."""
KLEIN = {
    "in_channels": 128, "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "attention_head_dim": 128,
    "joint_attention_dim": 7680, "guidance_embeds": False,
}  # fmt: skip


def traced(component):
    model = load_model(little_transformer("flux2"), component)
    return model.replace(graph=traced_graph(model.architecture))


@pytest.mark.parametrize("component", ["transformer", "vae_encoder", "vae_decoder", "text_encoder"])
def test_each_network_agrees_with_torch_at_other_sizes(component):
    compare_with_torch(traced(component), cases=CASES).require(1e-5)


def test_inputs_are_those_of_diffusers_and_parts_stay_single_operators():
    model = traced("transformer")
    graph = model.graph.to_ir().graph
    named = [value.name for value in graph.inputs if value.name not in model.weights]
    assert named == ["hidden_states", "encoder_hidden_states", "timestep", "img_ids", "txt_ids"]
    assert [value.name for value in graph.outputs] == ["out_hidden_states"]
    counts = Counter(node.op_type for node in graph)
    assert (counts["RMSNormalization"], counts["RotaryEmbedding"], counts["Attention"]) == (12, 8, 4)


@pytest.mark.parametrize("component", ["transformer", "vae_encoder", "vae_decoder", "text_encoder"])
def test_nothing_that_training_made_is_a_constant(component):
    model = traced(component)
    graph = model.graph.to_ir().graph
    assert all(one.const_value.nbytes <= 256 for one in graph.initializers.values())
    if component.startswith("vae"):
        assert {"bn.running_mean", "bn.running_var"} <= {value.name for value in graph.inputs} & model.weights.keys()


@pytest.mark.parametrize(
    ("change", "billions"),
    [
        ({}, 3.876),
        ({"num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288}, 9.08),
        ({"num_layers": 8, "num_single_layers": 48, "num_attention_heads": 48, "joint_attention_dim": 15360}, 32.19),
    ],
    ids=["4B", "9B", "dev"],
)
def test_its_size_is_told_by_its_config_and_larger_ones_are_refused(change, billions):
    config = {**KLEIN, **change}
    assert parameters(config) / 1e9 == pytest.approx(billions, abs=0.01)
    if not change:
        check_network("transformer", "Flux2Transformer2DModel", config)
        return
    with pytest.raises(SourceError, match=rf"{billions:.1f} billion parameters, .* GB in float32 and .* in 8 bits"):
        check_network("transformer", "Flux2Transformer2DModel", config)


@pytest.mark.parametrize(
    ("component", "class_name", "config", "said"),
    [
        ("transformer", "Flux2Transformer2DModel", {**KLEIN, "guidance_embeds": True}, "`guidance_embeds: true`"),
        ("transformer", "Flux2Transformer2DModel", {**KLEIN, "patch_size": 2}, "`patch_size: 2`"),
        ("transformer", "Flux2Transformer2DModel", {**KLEIN, "mlp_ratio": "x"}, '`mlp_ratio: "x"`'),
        ("transformer", "Flux2Transformer2DModel", {**KLEIN, "mlp_ratio": 1e300}, r"`mlp_ratio: 1e\+300`"),
        ("transformer", "Flux2Transformer2DModel", {**KLEIN, "num_layers": None}, "`num_layers: null`"),
        ("transformer", "Flux2Transformer2DModel", {**KLEIN, "axes_dims_rope": [64, 64]}, "4 even numbers make sense"),
        ("transformer", "Flux2Transformer2DModel", {**KLEIN, "rope_theta": float("nan")}, "`rope_theta: NaN`"),
        ("vae_decoder", "AutoencoderKLFlux2", {"patch_size": [2, 1]}, r"`patch_size: \[2, 1\]`"),
        ("vae_encoder", "AutoencoderKLFlux2", {"patch_size": 2}, "no height and width that are equal"),
    ],
)
def test_what_takes_or_makes_something_else_is_refused(component, class_name, config, said):
    with pytest.raises(SourceError, match=said):
        check_network(component, class_name, config)


def test_an_index_that_does_not_say_whether_it_was_distilled_is_refused():
    index = {"_class_name": "Flux2KleinPipeline"}
    assert family_of_folder({**index, "is_distilled": True}, (), KLEIN).steps == 4
    assert family_of_folder(index, (), KLEIN).steps == 50
    with pytest.raises(SourceError, match='has `is_distilled: "false"`, where true or false makes sense'):
        family_of_folder({**index, "is_distilled": "false"}, (), KLEIN)


def test_the_number_of_parameters_is_that_of_the_network():
    config = load_model(little_transformer("flux2"), "transformer").architecture.config
    from diffusers import Flux2Transformer2DModel

    count = sum(parameter.numel() for parameter in Flux2Transformer2DModel.from_config(config).parameters())
    # The formula has klein's numbers for what is small: the time's channels, and norms of heads.
    assert abs(parameters(config) - count) <= 224 * 48 + 16 * 12
