"""What a file is, from names, shapes and metadata."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from olivelike.errors import SourceError
from olivelike.sources import RawTensor, SourceSpec, open_source, read_header
from olivelike.sources.identify.identify import identify
from olivelike.testing.checkpoints import write_safetensors
from olivelike.testing.single_file_writer import make_single_file


def table(shapes, dtype="F16"):
    return {name: RawTensor(dtype, tuple(shape), 0) for name, shape in shapes.items()}


def identified(path):
    header = read_header(path)
    return identify(header.tensors, header.metadata)


EXPECTED = {
    "sd15": ("sd1", False, "epsilon"),
    "sd15_inpainting": ("sd1", True, "epsilon"),
    "sd21": ("sd2", False, "v_prediction"),
    "sd21_base": ("sd2", False, "v_prediction"),
    "sdxl": ("sdxl", False, "epsilon"),
    "sdxl_refiner": ("sdxl_refiner", False, "epsilon"),
}


def test_a_checkpoint_of_each_family_is_recognised(both_forms) -> None:
    found = identified(both_forms.file)
    assert (found.family, found.inpainting, found.expected_prediction) == EXPECTED[both_forms.family]
    assert (found.kind, found.naming, found.supported, found.prediction) == ("checkpoint", "original", True, None)
    assert any("not in the file" in reason for reason in found.reasons)


def test_a_unet_alone_is_recognised_by_its_structure(both_forms, tmp_path) -> None:
    path = make_single_file(both_forms.folder, tmp_path / "a.safetensors", components=["unet"], hollow=True)
    found = identified(path)
    assert (found.kind, found.family) == ("unet", EXPECTED[both_forms.family][0])


def test_precision_counts_values_by_dtype(both_forms_of, tmp_path) -> None:
    path = make_single_file(both_forms_of("sd15").folder, tmp_path / "a.safetensors", dtype="F16", hollow=True)
    precision = identified(path).precision
    assert (precision.dominant, precision.mixed) == ("F16", False)
    assert precision.elements["I64"] == 77
    both = identify(table({"a.weight": (4, 4)}) | table({"b.weight": (2,)}, "F32")).precision
    assert (both.dominant, both.mixed, both.elements) == ("F16", True, {"F16": 16, "F32": 2})


@pytest.mark.parametrize(
    ("marks", "metadata", "prediction", "zero_snr"),
    [
        (["v_pred"], {}, "v_prediction", False),
        (["v_pred", "ztsnr"], {}, "v_prediction", True),
        (["v_pred"], {"modelspec.prediction_type": "epsilon"}, "v_prediction", False),
        ([], {"modelspec.prediction_type": "v"}, "v_prediction", False),
        ([], {"modelspec.prediction_type": "epsilon"}, "epsilon", False),
        ([], {"modelspec.architecture": "stable-diffusion-v2-768-v"}, "v_prediction", False),
        ([], {"modelspec.architecture": "stable-diffusion-v2-512"}, "epsilon", False),
        ([], {"ss_v_parameterization": "True"}, "v_prediction", False),
        ([], {"modelspec.prediction_type": "??"}, None, False),
    ],
)
def test_what_the_unet_predicts_is_read_from_marks_and_metadata(
    both_forms_of, tmp_path, marks, metadata, prediction, zero_snr
) -> None:
    folder = both_forms_of("sd21").folder
    path = make_single_file(
        folder, tmp_path / "a.safetensors", components=["unet"], marks=marks, metadata=metadata, hollow=True
    )
    found = identified(path)
    assert (found.prediction, found.zero_snr) == (prediction, zero_snr)
    assert found.expected_prediction == (prediction or "v_prediction")


LORA = {
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight": (4, 768),
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_up.weight": (320, 4),
}
PEFT = {
    "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight": (4, 2048),
    "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_B.weight": (640, 4),
}


@pytest.mark.parametrize(
    ("shapes", "kind", "family"),
    [
        (LORA, "lora", "sd1"),
        (PEFT, "lora", "sdxl"),
        ({"lora_te2_text_model_encoder_layers_0_mlp_fc1.hada_w1_a": (4, 4)}, "lora", "sdxl"),
        ({"lora_unet_double_blocks_0_img_attn_proj.lora_down.weight": (4, 3072)}, "lora", None),
        ({"lora_unet_single_blocks_0_modulation_lin.lora_down.weight": (4, 3072)}, "lora", "flux"),
        ({"transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj.lora_A.weight": (4, 3072)}, "lora", "flux2"),
        ({"diffusion_model.noise_refiner.0.attention.qkv.lora_A.weight": (4, 3840)}, "lora", "z_image"),
        ({"emb_params": (3, 768)}, "embedding", "sd1"),
        ({"emb_params": (3, 1024)}, "embedding", "sd2"),
        ({"clip_l": (2, 768), "clip_g": (2, 1280)}, "embedding", "sdxl"),
        ({"<cat-toy>": (768,)}, "embedding", "sd1"),
        ({"string_to_param.*": (2, 768)}, "embedding", "sd1"),
    ],
)
def test_adapters_are_told_from_checkpoints(shapes, kind, family) -> None:
    found = identify(table(shapes))
    assert (found.kind, found.family, found.supported) == (kind, family, True)


def unet(channels, **more):
    base = {
        "model.diffusion_model.input_blocks.0.0.weight": (320, channels, 3, 3),
        "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (320, 1024),
    }
    return base | {name.replace("__", "."): shape for name, shape in more.items()}


@pytest.mark.parametrize(
    ("shapes", "kind", "network"),
    [
        ({"double_blocks.0.img_attn.norm.key_norm.scale": (128,)}, "checkpoint", "FLUX"),
        (
            {"model.diffusion_model.joint_blocks.0.context_block.adaLN_modulation.1.bias": (9216,)},
            "checkpoint",
            "Stable Diffusion 3",
        ),
        (unet(7, model__diffusion_model__label_emb__weight=(1000, 1024)), "checkpoint", "x4 upscaler"),
        (unet(8), "checkpoint", "InstructPix2Pix"),
        (unet(5), "checkpoint", "with depth"),
        (unet(4, model__diffusion_model__label_emb__0__0__weight=(1280, 2048)), "checkpoint", "unCLIP"),
        ({"lllite_unet_input_blocks_4_1_proj_in.depth.weight": (8, 8)}, "controlnet", "ControlNet-LLLite"),
        ({"input_hint_block.0.weight": (16, 3, 3, 3), "lora_controlnet": (1,)}, "controlnet", "Control-LoRA"),
        ({"style_embedding": (1, 8, 1024)}, "t2i_adapter", "T2I-Adapter for styles"),
        (
            {"body.0.block1.weight": (320, 320, 3, 3), "body.2.down_opt.op.weight": (320, 320, 3, 3)},
            "t2i_adapter",
            "T2I-Adapter of an early form, which halves by convolutions",
        ),
        (
            {"controlnet_cond_embedding.conv_in.weight": (16, 3, 3, 3), "task_embedding": (6, 320)},
            "controlnet",
            "ControlNet Union",
        ),
        (
            {"decoder.conv_in.weight": (512, 8, 3, 3), "decoder.mid.block_1.conv1.weight": (512, 512, 3, 3)},
            "vae",
            "8 latent channels",
        ),
        ({"layer.weight": (2, 2), "layer.bias": (2,)}, "unknown", ""),
        ({}, "unknown", ""),
    ],
)
def test_other_networks_are_refused_by_name(tmp_path, shapes, kind, network) -> None:
    found = identify(table(shapes))
    assert (found.kind, found.supported) == (kind, False)
    assert network in found.network
    if shapes:
        path = written(tmp_path, shapes)
        with pytest.raises(SourceError, match=rf"a\.safetensors: this is .*{network}.*not supported"):
            open_source(SourceSpec(path=path), ["unet"])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (LORA, r"this is a LoRA of Stable Diffusion 1\.x, no checkpoint.*name it under `loras:`"),
        ({"emb_params": (3, 768)}, r"this is an embedding .*name it under `embeddings:`"),
        (
            {"decoder.conv_in.weight": (512, 4, 3, 3), "decoder.mid.block_1.conv1.weight": (512, 512, 3, 3)},
            r"this is a VAE, no checkpoint.*name it as `vae:` beside a `source:`",
        ),
        (
            {"conv_in.weight": (320, 4, 3, 3), "down_blocks.0.resnets.0.conv1.weight": (320, 320, 3, 3)},
            r"this is a UNet alone, no checkpoint.*put it with its config\.json into a diffusers folder",
        ),
        (
            {"text_model.encoder.layers.0.self_attn.q_proj.weight": (8, 8), "x.y": (1,)},
            r"this is a text encoder, no checkpoint.*beside its transformer, as --part text_encoder=FILE",
        ),
    ],
)
def test_what_is_no_checkpoint_is_sent_to_its_place(tmp_path, shapes, message) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(SourceSpec(path=written(tmp_path, shapes)), ["unet"])


def test_the_name_and_suffix_of_a_file_say_nothing(both_forms_of, tmp_path) -> None:
    path = make_single_file(both_forms_of("sdxl").folder, tmp_path / "sd15_lora.ckpt", hollow=True)
    assert open_source(SourceSpec(path=path), []).origin.identified.family == "sdxl"


def test_a_file_of_another_format_is_refused(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(SourceError, match="not a GGUF file that can be read: it has version 0"):
        open_source(SourceSpec(path=path), [])
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(SourceError, match="pickled file"):
        open_source(SourceSpec(path=path), [])


def test_identifying_imports_no_heavy_library(both_forms_of) -> None:
    code = (
        "import sys; from pathlib import Path; from olivelike.sources import SourceSpec, open_source\n"
        "open_source(SourceSpec(path=Path(sys.argv[1])), ['unet'])\n"
        "print([name for name in ('torch', 'numpy', 'diffusers', 'transformers', 'onnx') if name in sys.modules])"
    )
    path = both_forms_of("sd15").file
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_identity_has_a_json_form(both_forms_of) -> None:
    found = identified(both_forms_of("sdxl").file).to_json()
    assert found["parts"] == ["unet", "text_encoder", "text_encoder_2", "vae"]
    assert found["precision"]["dominant"] == "F32"


def written(folder, shapes):
    path = folder / "a.safetensors"
    assert all(math.prod(shape) for shape in shapes.values())
    write_safetensors(path, {name: ("F16", shape) for name, shape in shapes.items()}, None)
    return path
