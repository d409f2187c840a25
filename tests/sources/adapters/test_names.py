"""Every layer of a network is found under every spelling of its name."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from olivelike.families import FAMILIES
from olivelike.families.networks.unet import LdmNames
from olivelike.sources.adapters import layer_names
from olivelike.sources.adapters.layer_names import Place, flat_name, spelled_layers
from olivelike.sources.adapters.merge import match_modules
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.names.adapt import convert_names
from olivelike.testing.lora_files import make_lora


def layers_of(network):
    """Return the layers that a LoRA can change."""
    return {
        name.removesuffix(".weight")
        for name, shape in network.shapes.items()
        if name.endswith(".weight") and len(shape) > 1 and "_embedding.weight" not in name
    }


@pytest.mark.parametrize("style", ["kohya", "locon_mid", "lokr", "peft", "diffusers_mid"])
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_every_layer_is_matched_to_its_own_parameter(family, style, request, tmp_path):
    networks = request.getfixturevalue(family)
    path = make_lora(
        tmp_path / "lora.safetensors", style, base=networks.shapes, components=tuple(networks), modules="all", rank=2
    )
    lora = open_lora(path)
    for component, network in networks.items():
        matched = match_modules(component, network.shapes, lora)
        expected = layers_of(network)
        assert {name.removesuffix(".weight") for name in matched} == expected
        for parameter, (share,) in matched.items():
            layer = parameter.removesuffix(".weight").removeprefix("text_model.").replace(".", "_")
            assert share.module.name.replace(".", "_").endswith(layer)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_original_names_of_every_layer_are_those_that_diffusers_reads(family, request):
    network = request.getfixturevalue(family)["unet"]
    stored = LdmNames(network.shapes)
    original = {stored(name): name for name in network.shapes}
    views = convert_names("unet", "unet", network.config, {old: network.shapes[new] for old, new in original.items()})
    spelled = spelled_layers("unet", network.shapes)
    for layer in layers_of(network):
        old = views[f"{layer}.weight"].name
        (place,) = spelled[flat_name(old.removesuffix(".weight"))]
        assert place == Place(f"{layer}.weight", 0, network.shapes[f"{layer}.weight"][0])


@pytest.mark.parametrize("component", ["text_encoder", "text_encoder_2"])
def test_names_without_the_text_model_level_are_matched_too(component, sdxl, tmp_path):
    from safetensors.numpy import load_file, save_file

    path = make_lora(tmp_path / "lora.safetensors", "peft", base=sdxl.shapes, components=(component,))
    save_file({name.replace("text_model.", ""): values for name, values in load_file(path).items()}, path)
    network = sdxl[component]
    assert len(match_modules(component, network.shapes, open_lora(path))) == 8


def test_ldm_and_diffusers_names_in_one_file_are_both_used(sdxl, tmp_path):
    from safetensors.numpy import load_file, save_file

    ldm, flat = (
        load_file(make_lora(tmp_path / f"{style}.safetensors", style, base=sdxl.shapes, components=("unet",)))
        for style in ("kohya_sdxl", "kohya")
    )
    mixed = {name: values for name, values in ldm.items() if "middle_block" in name}
    mixed |= {name: values for name, values in flat.items() if "mid_block" not in name}
    save_file(mixed, tmp_path / "mixed.safetensors")
    network = sdxl["unet"]
    lora = open_lora(tmp_path / "mixed.safetensors")
    assert len(match_modules("unet", network.shapes, lora)) * 2 == len(flat)


@pytest.fixture
def transformer(monkeypatch):
    """Make a family known whose denoiser is a transformer, which kohya calls `unet` all the same."""
    words = {"transformer": ("unet", "transformer", "diffusion_model")}
    family = replace(FAMILIES["sd1"], denoiser="transformer", lora_names=words, lora_layers={"transformer": LAYERS})
    monkeypatch.setitem(FAMILIES, "toy", family)
    layer_names._words.cache_clear()
    yield
    layer_names._words.cache_clear()


LAYERS = ("transformer_blocks", "joint_blocks")


@pytest.mark.parametrize(
    "name",
    [
        "transformer.transformer_blocks.0.attn.to_q",
        "lora_unet_joint_blocks_0_x_block_attn_qkv",
        "diffusion_model.joint_blocks.0.x_block.attn.qkv",
        "base_model.model.transformer_blocks.0.attn.to_q",
    ],
)
def test_a_familys_words_and_layers_say_where_a_transformers_lora_belongs(name, transformer, tmp_path):
    layer = name[re.search("joint|transformer_", name).start() :]
    parameter = "joint_blocks.0.x_block.attn.qkv.weight" if "joint" in layer else f"{layer}.weight"
    factors = {"lora_A": (2, 8), "lora_B": (8, 2)}
    tensors = {f"{name}.{role}.weight": np.ones(shape, "f4") for role, shape in factors.items()}
    save_file({**tensors, f"{name}.alpha": np.array(2, "f4")}, tmp_path / "a.safetensors")
    lora = open_lora(tmp_path / "a.safetensors")
    assert lora.components == {"transformer"}
    assert [*match_modules("transformer", {parameter: (8, 8)}, lora)] == [parameter]


def test_a_unets_lora_stays_one_beside_a_transformers(transformer, sd1, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base={"unet": sd1["unet"].shapes}, components=("unet",))
    assert open_lora(path).components == {"unet"}
