"""What opening a LoRA tells, by its header alone."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from olivelike.errors import SourceError
from olivelike.sources.adapters.lora_file import check_family
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.identify.weight_file import training_notes
from olivelike.testing.lora_files import make_lora
from tests.fixtures.pickle_tables import read_pickle_here


def shapes_of_width(width, text):
    """Return the shapes of one attention layer as the families have them."""
    unet = "mid_block.attentions.0.transformer_blocks.0"
    return {
        "unet": {f"{unet}.attn1.to_q.weight": (64, 64), f"{unet}.attn2.to_k.weight": (64, width)},
        "text_encoder": {"encoder.layers.0.self_attn.q_proj.weight": (text, text)},
        "text_encoder_2": {"encoder.layers.0.self_attn.q_proj.weight": (1280, 1280)},
    }


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("diffusers_old", ("diffusers", {"lora"})),
        ("diffusers_mid", ("diffusers", {"lora"})),
        ("peft", ("peft", {"lora"})),
        ("kohya", ("kohya", {"lora"})),
        ("locon_mid", ("kohya", {"lora"})),
        ("loha", ("kohya", {"loha"})),
        ("lokr", ("kohya", {"lokr"})),
        ("dora", ("kohya", {"lora", "dora"})),
        ("dora_peft", ("peft", {"lora", "dora"})),
    ],
)
def test_format_kinds_and_components_are_recognised(style, expected, tmp_path):
    path = make_lora(tmp_path / "lora.safetensors", style, base=shapes_of_width(768, 768), rank=4)
    lora = open_lora(path)
    assert (lora.format, lora.kinds) == expected
    assert lora.components == {"unet", "text_encoder"}
    assert lora.family == "sd1"
    assert lora.cross_attention_dim == 768
    assert lora.ranks == {4}


def test_factors_of_convolutions_are_called_locon(tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "locon", base={"unet": {"conv_in.weight": (8, 4, 3, 3)}},
                     components=("unet",), modules="all")  # fmt: skip
    assert open_lora(path).kinds == {"locon"}


@pytest.mark.parametrize(
    ("family", "width", "text", "components"),
    [
        ("sd1", 768, 768, ("unet",)),
        ("sd2", 1024, 1024, ("unet",)),
        ("sdxl", 2048, 768, ("unet",)),
        ("sdxl_refiner", 1280, 768, ("unet",)),
        ("sd1", 768, 768, ("text_encoder",)),
        ("sd2", 1024, 1024, ("text_encoder",)),
        ("sdxl", 2048, 768, ("text_encoder", "text_encoder_2")),
        (None, 320, 768, ("unet",)),
    ],
)
def test_the_family_is_told_by_names_and_widths(family, width, text, components, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=shapes_of_width(width, text), components=components)
    assert open_lora(path).family == family


def test_ldm_names_alone_tell_sdxl(tmp_path):
    base = {
        "unet": {"mid_block.resnets.0.conv1.weight": (8, 8, 3, 3), "down_blocks.0.resnets.1.conv1.weight": (8, 8, 3, 3)}
    }
    path = make_lora(tmp_path / "a.safetensors", "kohya_sdxl", base=base, components=("unet",), modules="all")
    assert open_lora(path).family == "sdxl"


@pytest.mark.parametrize(("components", "width"), [(("unet",), 768), (("text_encoder", "text_encoder_2"), 768)])
def test_an_sdxl_lora_on_an_sd1_source_is_refused(components, width, tmp_path):
    path = make_lora(tmp_path / "xl.safetensors", "kohya", base=shapes_of_width(2048, 768), components=components)
    with pytest.raises(SourceError, match=r"xl\.safetensors: this LoRA is for Stable Diffusion XL .*2048.*SD/unet is"
                                          r" Stable Diffusion 1\.x"):  # fmt: skip
        check_family(open_lora(path), width, "SD/unet")


def test_a_lora_of_the_same_family_passes(tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=shapes_of_width(1024, 1024))
    check_family(open_lora(path), 1024, "SD 2.1")


def test_a_text_encoder_lora_that_tells_no_family_passes(tmp_path):
    base = {"text_encoder": {"encoder.layers.0.self_attn.q_proj.weight": (768, 768)}}
    path = make_lora(tmp_path / "a.safetensors", "peft", base=base, components=("text_encoder",))
    check_family(open_lora(path), 2048, "SDXL")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_alpha_is_read_in_any_dtype(dtype, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=shapes_of_width(768, 768), alpha=1.5, dtype=dtype)
    assert {module.alpha for module in open_lora(path).modules.values()} == {1.5}


def test_a_folder_of_diffusers_is_opened(tmp_path):
    path = make_lora(tmp_path / "pytorch_lora_weights.safetensors", "peft", base=shapes_of_width(768, 768), alpha=8)
    lora = open_lora(tmp_path)
    assert lora.path == path
    assert {module.scale for module in lora.modules.values()} == {2.0}


def test_a_folder_of_peft_is_opened_with_its_config(tmp_path):
    folder = make_lora(tmp_path / "a", "peft_native", base=shapes_of_width(768, 768), components=("unet",), alpha=8)
    lora = open_lora(folder)
    assert lora.config_path == folder / "adapter_config.json"
    assert lora.format == "peft_native"
    assert {module.scale for module in lora.modules.values()} == {2.0}


@pytest.mark.parametrize("where", ["header", "config"])
def test_names_without_a_component_take_alpha_from_header_or_config(where, tmp_path):
    config = json.dumps({"r": 4, "lora_alpha": 8})
    layer = "mid_block.attentions.0.proj_in"
    tensors = {f"{layer}.lora_A.weight": np.ones((4, 6), np.float32)}
    tensors[f"{layer}.lora_B.weight"] = np.ones((6, 4), np.float32)
    metadata = {"lora_adapter_metadata": config} if where == "header" else {}
    save_file(tensors, tmp_path / "adapter_model.safetensors", metadata)
    if where == "config":
        (tmp_path / "adapter_config.json").write_text(config)
    lora = open_lora(tmp_path)
    assert lora.modules[layer].scale == 2
    assert (lora.config_path is None) == (where == "header")


def test_a_config_beside_a_file_that_does_not_need_it_is_not_read(tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=shapes_of_width(768, 768))
    (tmp_path / "adapter_config.json").write_text("{")
    assert open_lora(path).config_path is None


def test_pefts_names_of_the_second_text_encoder_are_told_by_its_width(tmp_path):
    base = {"text_encoder": {"encoder.layers.0.self_attn.q_proj.weight": (1280, 1280)}}
    folder = make_lora(tmp_path / "a", "peft_native", base=base, components=("text_encoder",))
    assert open_lora(folder).components == {"text_encoder_2"}


def test_one_of_several_adapters_is_chosen_by_name(tmp_path):
    path = tmp_path / "two.safetensors"
    save_two_adapters(path)
    assert open_lora(path, adapter="style").ranks == {2}
    assert open_lora(path, adapter="pose").ranks == {3}


def test_several_adapters_and_no_choice_are_refused_with_their_names(tmp_path):
    path = tmp_path / "two.safetensors"
    save_two_adapters(path)
    with pytest.raises(SourceError, match="several adapters: pose, style; choose one"):
        open_lora(path)
    with pytest.raises(SourceError, match="no adapter 'face'; it has pose, style"):
        open_lora(path, adapter="face")


def save_two_adapters(path):
    tensors = {}
    for name, rank in (("style", 2), ("pose", 3)):
        tensors[f"unet.conv_in.lora_A.{name}.weight"] = np.ones((rank, 4, 3, 3), np.float32)
        tensors[f"unet.conv_in.lora_B.{name}.weight"] = np.ones((8, rank, 1, 1), np.float32)
    save_file(tensors, path)


def test_adapters_in_folders_of_their_own_are_chosen_by_name(tmp_path):
    for name, rank in (("style", 2), ("pose", 3)):
        make_lora(tmp_path / name, "peft_native", base=shapes_of_width(768, 768), components=("unet",), rank=rank)
    assert open_lora(tmp_path, adapter="pose").ranks == {3}
    with pytest.raises(SourceError, match="several adapters; choose one of pose, style"):
        open_lora(tmp_path)


def test_pickled_files_need_a_reader(tmp_path):
    import torch

    source = make_lora(tmp_path / "a.safetensors", "kohya", base=shapes_of_width(768, 768), alpha=2)
    path = tmp_path / "a.pt"
    torch.save({name: torch.from_numpy(values) for name, values in load_file(source).items()}, path)
    with pytest.raises(SourceError, match="--allow-pickle"):
        open_lora(path)
    lora = open_lora(path, read_pickle=read_pickle_here)
    assert lora.modules.keys() == open_lora(source).modules.keys()
    assert {module.alpha for module in lora.modules.values()} == {2.0}


def test_notes_of_the_trainer_are_read(tmp_path):
    tags = {"10_cat": {"cat": 30, "sks": 40}, "5_dog": {"dog": 12, "cat": 20}}
    metadata = {
        "ss_output_name": "pets",
        "ss_network_module": "lycoris.kohya",
        "ss_network_args": json.dumps({"algo": "loha"}),
        "ss_tag_frequency": json.dumps(tags),
        "ss_sd_model_name": "v1-5.safetensors",
        "modelspec.trigger_phrase": "sks cat, sks dog",
    }
    path = make_lora(tmp_path / "a.safetensors", "loha", base=shapes_of_width(768, 768), metadata=metadata)
    notes = training_notes(open_lora(path).metadata)
    assert notes.name == "pets"
    assert notes.network == "lycoris.kohya (loha)"
    assert notes.base_model == "v1-5.safetensors"
    assert notes.trigger_words == ("sks cat", "sks dog", "cat", "sks", "dog")


def test_damaged_notes_are_left_out():
    notes = training_notes({"ss_tag_frequency": "{", "ss_network_args": "[1]", "ss_output_name": "None"})
    assert notes.trigger_words == ()
    assert notes.name is None


def test_opening_imports_no_heavy_library(tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=shapes_of_width(768, 768), alpha=2)
    heavy = "{'torch', 'numpy', 'diffusers', 'peft', 'transformers', 'safetensors', 'onnx'}"
    code = (
        "import sys; from pathlib import Path; from olivelike.sources.adapters.open_lora import open_lora;"
        "from olivelike.sources.adapters.lora_file import check_family;"
        f"check_family(open_lora(Path({str(path)!r})), 768, 'it'); sys.exit(bool({heavy} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def kohya_module(path, layer="mid_block_attentions_0_proj_in", prefix="lora_unet_", **roles):
    """Save one module, and return the opened file and its module."""
    import torch
    from safetensors.torch import save_file as save_torch

    tensors = {f"{prefix}{layer}.{role.replace('__', '.')}": torch.as_tensor(value) for role, value in roles.items()}
    save_torch(tensors, path)
    return open_lora(path), f"{prefix}{layer}"


def test_an_alpha_beside_two_whole_factors_is_not_read(sd1, tmp_path):
    import torch

    # LyCORIS writes its network_dim of 100000 there, which half precision can't hold.
    shape = sd1["unet"].shapes["mid_block.attentions.0.proj_in.weight"]
    whole = {"lokr_w1": torch.ones(1, 1), "lokr_w2": torch.ones(shape), "alpha": torch.tensor(1e5).half()}
    lora, name = kohya_module(tmp_path / "a.safetensors", **whole)
    assert lora.modules[name].scale == 1
    (merged,) = sd1["unet"].merge(lora).values()
    assert np.allclose(merged, sd1["unet"].state["mid_block.attentions.0.proj_in.weight"] + 1)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("alpha", [4.0, 0.015625, -1.5, 1.0])
def test_an_alpha_in_float8_is_read(dtype, alpha, tmp_path):
    import torch

    stored = torch.tensor(alpha).to(getattr(torch, dtype))
    lora, name = kohya_module(
        tmp_path / "a.safetensors", lora_down__weight=torch.ones(2, 4), lora_up__weight=torch.ones(4, 2), alpha=stored
    )
    assert lora.modules[name].alpha == stored.float().item()


def test_a_broken_tensor_of_a_network_that_is_not_changed_does_no_harm(sd1, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=sd1.shapes, components=("unet", "text_encoder"), alpha=2)
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    for name, values in tensors.items():
        if name.startswith("lora_te_"):
            values.flat[0] = np.inf
    save_file(tensors, path)
    lora = open_lora(path)
    assert sd1["unet"].merge(lora)
    assert sd1["text_encoder"].merge((lora, 0.0)) == {}
    with pytest.raises(SourceError, match=r"alpha is inf; get the file again"):
        sd1["text_encoder"].merge(lora)
