"""The denoiser of Z-Image as a graph: the library's own numbers at any size, length and batch, by a forward of ours."""

from __future__ import annotations

from collections import Counter

import pytest

from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_folder
from olivelike.families.supported import check_network
from olivelike.measure.network_sizes import Case
from olivelike.testing import compare_with_torch
from olivelike.testing.models import load_model, traced_graph
from tests.fixtures.little_transformers import little_transformer

CASES = (Case(1, 2, 4, 1), Case(3, 6, 2, 256), Case(1, 16, 40, 50), Case(2, 24, 8, 32), Case(1, 32, 32, 512))
"""None of them was traced; tokens of pictures and texts are multiples of 32, and are not."""


def traced(component):
    model = load_model(little_transformer("z_image"), component)
    return model.replace(graph=traced_graph(model.architecture))


@pytest.mark.parametrize("component", ["transformer", "vae_encoder", "vae_decoder"])
def test_each_network_agrees_with_the_library_s_own_at_other_sizes(component):
    """The VAE is of the form that FLUX.1 and Stable Diffusion 3 have, too."""
    compare_with_torch(traced(component), cases=CASES).require(1e-5)


def test_the_text_encoder_has_the_states_before_the_last_layer():
    model = traced("text_encoder")
    compare_with_torch(model, cases=CASES).require(1e-5)
    assert {name.split(".")[1] for name in model.weights if name.startswith("layers.")} >= {"0", "1", "2"}
    taken = {value.name for value in model.graph.to_ir().graph.inputs}
    assert {name.split(".")[1] for name in taken if name.startswith("layers.")} == {"0", "1"}


def test_its_graph_says_what_operators_are_and_holds_no_large_constant():
    model = traced("transformer")
    graph = model.graph.to_ir().graph
    named = [value.name for value in graph.inputs if value.name not in model.weights]
    assert named == ["sample", "timestep", "encoder_hidden_states"]
    assert [value.name for value in graph.outputs] == ["out_sample"]
    counts = Counter(node.op_type for node in graph)
    blocks = 4
    assert (counts["RMSNormalization"], counts["RotaryEmbedding"], counts["Attention"]) == (25, 2 * blocks, blocks)
    # The largest are the frequencies of the timestep.
    assert max(one.const_value.nbytes for one in graph.initializers.values()) <= 512


@pytest.mark.parametrize(
    ("index", "denoiser", "name"),
    [
        ({"_class_name": "ZImagePipeline"}, {}, "z_image"),
        ({"_class_name": "ZImageImg2ImgPipeline"}, {}, "z_image"),
        ({}, {"cap_feat_dim": 2560, "n_refiner_layers": 2}, "z_image"),
        ({}, {"cap_feat_dim": 2304, "num_refiner_layers": 2}, "sd1"),
    ],
)
def test_a_folder_is_told_by_its_class_or_its_denoiser(index, denoiser, name):
    assert family_of_folder(index, (), denoiser).name == name


@pytest.mark.parametrize(
    ("said", "steps", "scale"), [({}, 8, 1.0), ({"is_distilled": True}, 8, 1.0), ({"is_distilled": False}, 28, 4.0)]
)
def test_an_index_may_say_that_it_is_the_base(said, steps, scale):
    family = family_of_folder({"_class_name": "ZImagePipeline", **said}, (), {})
    assert family.usual == {"steps": steps, "guidance_scale": scale}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"all_patch_size": [2, 4], "all_f_patch_size": [1, 1]}, "no squares of 2 by 2 latents"),
        ({"all_patch_size": 2}, "no squares of 2 by 2 latents"),
        ({"all_f_patch_size": None}, "no squares of 2 by 2 latents"),
        ({"siglip_feat_dim": 1152}, "takes pictures beside the text"),
        ({"n_layers": 0.5}, "`n_layers: 0.5`"),
        ({"axes_dims": [32, 48, 32]}, "3 even numbers make sense whose sum is 128"),
        ({"n_heads": 60}, "whose sum is 64, the width of a head"),
        ({"rope_theta": 0}, "`rope_theta: 0`, where a number above 1"),
        ({"rope_theta": "256"}, '`rope_theta: "256"`'),
    ],
    ids=str,
)
def test_denoisers_that_take_something_else_are_refused(config, said):
    with pytest.raises(SourceError, match=said):
        check_network("transformer", "ZImageTransformer2DModel", config, FAMILIES["z_image"])


@pytest.mark.parametrize("name", ["Qwen3Model", "Qwen3ForCausalLM"])
def test_its_text_encoder_may_have_a_head_that_makes_words(name):
    check_network("text_encoder", name, {"num_hidden_layers": 36}, FAMILIES["z_image"])
    with pytest.raises(SourceError, match="Qwen3Model or Qwen3ForCausalLM"):
        check_network("text_encoder", "CLIPTextModel", {}, FAMILIES["z_image"])
