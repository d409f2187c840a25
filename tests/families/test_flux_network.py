"""The denoiser of FLUX.1 as a graph: torch's own numbers at any size, length and batch, under optimum's names."""

from __future__ import annotations

import pytest

from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_folder
from olivelike.families.supported import check_network
from olivelike.measure.network_sizes import Case
from olivelike.testing import compare_with_torch
from olivelike.testing.models import load_model, traced_graph
from tests.fixtures.little_transformers import little_transformer

NAMES = [
    "hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "img_ids", "txt_ids",
]  # fmt: skip
CASES = (Case(1, 2, 4, 1), Case(3, 6, 2, 256), Case(1, 16, 40, 50), Case(2, 24, 8, 9), Case(1, 32, 32, 512))
"""None of them was traced."""


def traced(component, *, dev=False):
    model = load_model(little_transformer("flux", "dev" if dev else ""), component)
    return model.replace(graph=traced_graph(model.architecture))


@pytest.mark.parametrize("dev", [False, True], ids=["schnell", "dev"])
def test_the_denoiser_agrees_with_torch_at_other_sizes(dev):
    compare_with_torch(traced("transformer", dev=dev), cases=CASES).require(1e-5)


@pytest.mark.parametrize(("dev", "more"), [(False, []), (True, ["guidance"])], ids=["schnell", "dev"])
def test_inputs_and_outputs_have_the_names_of_optimum(dev, more):
    model = traced("transformer", dev=dev)
    graph = model.graph.to_ir().graph
    named = [value.name for value in graph.inputs if value.name not in model.weights]
    assert named == [*NAMES, *more]
    assert [value.name for value in graph.outputs] == ["out_hidden_states"]


def test_t5_agrees_with_torch_at_other_lengths():
    compare_with_torch(traced("text_encoder_2"), cases=CASES).require(1e-5)


@pytest.mark.parametrize(
    ("index", "denoiser", "name"),
    [
        ({"_class_name": "FluxPipeline"}, {}, "flux"),
        ({"_class_name": "ORTFluxPipeline"}, {}, "flux"),
        ({"_class_name": "FluxImg2ImgPipeline"}, {}, "flux"),
        ({}, {"num_single_layers": 38, "pooled_projection_dim": 768, "joint_attention_dim": 4096}, "flux"),
        ({}, {"caption_projection_dim": 1536, "pooled_projection_dim": 2048, "joint_attention_dim": 4096}, "sd3"),
        ({"_class_name": "Flux2Pipeline"}, {"num_single_layers": 48}, "flux2"),
    ],
)
def test_a_folder_is_told_by_its_class_or_its_denoiser(index, denoiser, name):
    assert family_of_folder(index, (), denoiser).name == name


def test_dev_has_other_steps_guidance_and_length_than_schnell():
    schnell, dev = (family_of_folder({"_class_name": "FluxPipeline"}, (), {"guidance_embeds": on}) for on in (0, 1))
    assert (schnell.steps, schnell.guidance, schnell.texts[1].length) == (4, 0.0, 256)
    assert (dev.steps, dev.guidance, dev.texts[1].length) == (28, 3.5, 512)
    assert schnell is FAMILIES["flux"]


@pytest.mark.parametrize("axes", [[16, 56, 55], [17, 55, 56], [64, 64], 128, [16, 56, None]], ids=str)
def test_turns_that_do_not_fill_a_head_are_refused(axes):
    with pytest.raises(SourceError, match=r"`axes_dims_rope: .* 3 even numbers make sense whose sum is 128"):
        check_network("transformer", "FluxTransformer2DModel", {"axes_dims_rope": axes}, FAMILIES["flux"])


@pytest.mark.parametrize(
    "config", [{"in_channels": 384, "out_channels": 64}, {"in_channels": 64, "patch_size": 2}], ids=str
)
def test_denoisers_of_its_tools_are_refused(config):
    with pytest.raises(SourceError, match="takes or makes more than latents"):
        check_network("transformer", "FluxTransformer2DModel", config, FAMILIES["flux"])
