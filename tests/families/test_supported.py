"""Networks that are refused before anything is built, with class, option and reason."""

from __future__ import annotations

import json

import pytest

from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_index
from olivelike.families.networks import classes_of
from olivelike.families.supported import check_network, first_line
from olivelike.sources.identify.published import network_class

UNET = FAMILIES["sd1"].published.configs["unet"]
TEXT = FAMILIES["sd1"].published.configs["text_encoder"]


def refusal(component, class_name, config, family=None):
    with pytest.raises(SourceError) as caught:
        check_network(component, class_name, config, family)
    message = str(caught.value)
    assert message.startswith(f"{component}: ")
    assert class_name in message
    assert "\n" not in message
    return message


def test_published_families_are_supported():
    for family in FAMILIES.values():
        for folder, config in family.published.configs.items():
            for component in ("vae_encoder", "vae_decoder") if folder == "vae" else (folder,):
                check_network(component, network_class(family, folder)[1], config, family)


@pytest.mark.parametrize(
    ("component", "class_name", "reason"),
    [
        ("unet", "UNet2DModel", "it takes no text; use a checkpoint with UNet2DConditionModel"),
        ("unet", "UNetMotionModel", "it makes videos"),
        ("unet", "UNetOfTomorrow", "UNetOfTomorrow is not supported here; use"),
        ("vae_decoder", "VQModel", "its latents come from a table"),
        ("preview_decoder", "AutoencoderKL", "use a checkpoint with AutoencoderTiny, or drop preview_decoder"),
        ("vae_decoder", "AutoencoderKLTemporalDecoder", "it makes videos"),
        ("text_encoder", "T5EncoderModel", "it reads no CLIP tokens and has no pooled output"),
        ("text_encoder", "CLIPTextModelWithProjection", "it has no pooled output beside the projected one"),
    ],
)
def test_a_class_without_the_interface_of_its_component_is_refused(component, class_name, reason):
    assert reason in refusal(component, class_name, {}, FAMILIES["sd1"])


def test_components_of_which_nothing_is_known_are_not_judged():
    assert not classes_of("prior")
    check_network("prior", "PriorTransformer", {})


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("class_embed_type", "timestep", '`class_embed_type: "timestep"` is not supported: it takes a class'),
        ("num_class_embeds", 1000, "`num_class_embeds: 1000` is not supported: it takes the number of a class"),
        ("encoder_hid_dim", 64, "it takes text or pictures of another width"),
        ("encoder_hid_dim_type", "text_proj", "it takes text or pictures of another width"),
        ("addition_embed_type", "image", "it takes more text or a picture"),
        ("addition_embed_type", "text", "it takes more text or a picture"),
        ("dual_cross_attention", True, "`dual_cross_attention: true` is not supported: it attends to two texts"),
        ("cross_attention_dim", [32, 32], "`cross_attention_dim: [32, 32]` is not supported: it attends to texts of"),
        ("cross_attention_dim", None, "`cross_attention_dim: null` is not supported: it attends to no text"),
        ("addition_embed_type", "text_time", "and has null and null; get its config.json again"),
        ("class_embed_type", "x" * 1000, "xxx…` is not supported"),
    ],
)
def test_an_option_that_needs_inputs_that_no_client_has_is_refused(option, value, reason):
    assert reason in refusal("unet", "UNet2DConditionModel", {**UNET, option: value})


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("layers_per_block", 10**9, "`layers_per_block: 1000000000`, where whole numbers from 0 to 100 make sense"),
        ("layers_per_block", -1, "from 0 to 100"),
        ("layers_per_block", [2, [2, [2, [2]]]], "from 0 to 100"),
        ("transformer_layers_per_block", [[1, 10**6]], "from 0 to 100"),
        ("block_out_channels", [320, 10**12], "whole numbers from 1 to 1048576"),
        ("block_out_channels", [], "`block_out_channels` of 0 members, where 1 to 32 make sense"),
        ("block_out_channels", [32] * 10**6, "of 1000000 members"),
        ("block_out_channels", "wide", '`block_out_channels: "wide"`'),
        ("norm_num_groups", 0, "`norm_num_groups: 0`"),
        ("attention_head_dim", 0, "`attention_head_dim: 0`"),
        ("attention_head_dim", True, "`attention_head_dim: true`"),
        ("attention_head_dim", 2.5, "`attention_head_dim: 2.5`"),
        ("in_channels", {}, "`in_channels: {}`"),
        ("in_channels", float("inf"), "`in_channels: Infinity`"),
        ("in_channels", float("nan"), "`in_channels: NaN`"),
    ],
)
def test_sizes_that_no_network_has_are_refused_before_one_is_built(option, value, told):
    assert told in refusal("unet", "UNet2DConditionModel", {**UNET, option: value})


def test_sizes_of_transformers_are_looked_at_too_where_they_are_nested():
    assert "`num_hidden_layers: 100000`" in refusal(
        "text_encoder", "CLIPTextModel", {**TEXT, "num_hidden_layers": 10**5}
    )
    vision = {"vision_config": {"image_size": 1 << 20, "patch_size": 1}}
    assert "`vision_config.image_size: 1048576` with" in refusal(
        "safety_checker", "StableDiffusionSafetyChecker", vision
    )


def test_lists_of_levels_and_absent_sizes_are_fine():
    config = {
        "transformer_layers_per_block": [1, [2, 2], [4, 4]],
        "attention_head_dim": [5, 10],
        "norm_num_groups": None,
    }
    check_network("unet", "UNet2DConditionModel", {**UNET, **config, "cross_attention_dim": 768.0})
    check_network("unet", "UNet2DConditionModel", json.loads("{}"))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("hidden_size"), "it has no 'hidden_size'"),
        (ValueError("\n\x1b[31mno:\x1b[0m\nmore"), "no"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_of_a_librarys_error_its_first_line_is_told(error, line):
    assert first_line(error) == line


def test_numbers_beside_the_pooled_text_leave_room_for_it():
    xl = FAMILIES["sdxl"].published.configs["unet"]
    told = refusal("unet", "UNet2DConditionModel", {**xl, "projection_class_embeddings_input_dim": 1280})
    assert "the second more than 5 times the first, and has 256 and 1280" in told


def test_a_class_name_reaches_no_terminal_as_it_is():
    with pytest.raises(SourceError, match=r'unet: "\\u001b\[31mred" is not supported here'):
        check_network("unet", "\x1b[31mred", {})


def test_each_family_has_a_class_for_each_of_its_text_encoders():
    assert classes_of("text_encoder", FAMILIES["sd1"]) == ("CLIPTextModel",)
    assert classes_of("text_encoder_2", FAMILIES["sdxl"]) == ("CLIPTextModelWithProjection",)
    with pytest.raises(SourceError, match="use a checkpoint with CLIPTextModel,"):
        check_network("text_encoder", "CLIPTextModelWithProjection", {}, FAMILIES["sd1"])
    entry = ["diffusers", "UNet2DConditionModel"]
    assert family_of_index({"unet": entry}) is FAMILIES["sd1"]
    assert family_of_index({"unet": ["diffusers", "UNet3DConditionModel"]}) is None


def test_positions_of_a_transformer_are_bounded():
    message = refusal("transformer", "SD3Transformer2DModel", {"pos_embed_max_size": 2000}, FAMILIES["sd3"])
    assert "`pos_embed_max_size: 2000`, which are too many patches" in message
