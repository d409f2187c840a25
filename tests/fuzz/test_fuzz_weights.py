"""Damaged safetensors files, LoRAs and ONNX files: each is read, or refused with an error of ours."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hostile import QUICK, SLOW, TEXTS, damage_bytes, damage_json, feed, read_all_ways

from olivelike.graphs.inspect import inspect_model
from olivelike.model import Tensor
from olivelike.model.block_forms import BLOCK_FORMS
from olivelike.model.tensor_file import DTYPES, read_tensor
from olivelike.runtime.sessions.session import read_model_file, value_specs
from olivelike.sources.adapters.ip_adapter_file import read_ip_adapter
from olivelike.sources.adapters.lora_settings import CONFIG_NAME, METADATA_KEY
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.identify.weight_file import describe_weight_file, training_notes
from olivelike.sources.single_file import SingleFile

RUNS = pytest.mark.parametrize("runs", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])

_UNET = "model.diffusion_model."
CHECKPOINT = {
    f"{_UNET}input_blocks.0.0.weight": [4, 4, 3, 3],
    f"{_UNET}input_blocks.1.0.in_layers.2.weight": [4, 4, 3, 3],
    f"{_UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": [4, 768],
    f"{_UNET}input_blocks.1.1.proj_in.weight": [4, 4, 1, 1],
    f"{_UNET}input_blocks.2.0.op.weight": [4, 4, 3, 3],
    f"{_UNET}middle_block.1.transformer_blocks.0.attn2.to_k.weight": [4, 768],
    f"{_UNET}output_blocks.0.0.in_layers.2.weight": [4, 8, 3, 3],
    f"{_UNET}label_emb.0.0.weight": [4, 4],
    f"{_UNET}out.2.weight": [4, 4, 3, 3],
    "first_stage_model.decoder.conv_in.weight": [4, 4, 3, 3],
    "first_stage_model.decoder.mid.block_1.conv1.weight": [4, 4, 3, 3],
    "first_stage_model.decoder.up.0.block.0.conv1.weight": [4, 4, 3, 3],
    "first_stage_model.decoder.conv_out.weight": [3, 4, 3, 3],
    "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight": [9, 4],
    "cond_stage_model.transformer.text_model.embeddings.position_embedding.weight": [7, 4],
    "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight": [8, 4],
    "v_pred": [0],
}
ALONE = (
    {"decoder.conv_in.weight": [4, 4, 3, 3], "decoder.mid.block_1.conv1.weight": [4]},
    {"decoder.conv_in.weight": [4, 4, 3, 3], "decoder.up_blocks.0.x": [1]},
    {"conv_in.weight": [4, 4, 3, 3], "down_blocks.0.x.weight": [1]},
    {"encoder.layers.0.self_attn.q_proj.weight": [4, 4]},
    {"emb_params": [2, 768]},
    {"clip_l": [2, 768], "clip_g": [2, 1280]},
    {"<cat>": [768]},
    {"string_to_param.*": [1, 768]},
    {"control_model.x": [1]},
    {"double_blocks.0.img_attn.x": [1]},
)
IP_ADAPTERS = tuple(
    {**projection, **{f"ip_adapter.{number}.to_{kind}_ip.weight": [4, 8] for number in (1, 3) for kind in "kv"}}
    for projection in (
        {"image_proj.proj.weight": [32, 4], "image_proj.proj.bias": [32], "image_proj.norm.weight": [8]},
        {"image_proj.proj.0.weight": [4, 4], "image_proj.proj.2.weight": [8, 4], "image_proj.proj.3.weight": [8]},
        {
            "image_proj.latents": [1, 4, 64], "image_proj.proj_in.weight": [64, 4],
            "image_proj.proj_out.weight": [8, 64], "image_proj.layers.0.0.to_q.weight": [64, 64],
            "image_proj.layers.0.0.to_kv.weight": [128, 64],
        },
    )
)  # fmt: skip
LORAS = (
    {
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight": [4, 768],
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_up.weight": [8, 4],
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.alpha": [],
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight": [4, 8],
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight": [8, 4],
    },
    {
        "unet.down_blocks.0.attentions.0.attn2.to_k.lora_A.weight": [4, 768],
        "unet.down_blocks.0.attentions.0.attn2.to_k.lora_B.weight": [8, 4],
        "unet.down_blocks.0.attentions.0.attn1.to_q.lora_A.weight": [2, 8],
        "unet.down_blocks.0.attentions.0.attn1.to_q.lora_B.weight": [8, 2],
        "unet.down_blocks.0.attentions.0.attn1.to_q.lora_magnitude_vector.weight": [8],
    },
    {
        "base_model.model.down_blocks.0.attn1.to_q.lora_A.weight": [4, 8],
        "base_model.model.down_blocks.0.attn1.to_q.lora_B.weight": [8, 4],
    },
    {
        "lora_unet_mid_block_proj.hada_w1_a": [8, 2],
        "lora_unet_mid_block_proj.hada_w1_b": [2, 8],
        "lora_unet_mid_block_proj.hada_w2_a": [8, 2],
        "lora_unet_mid_block_proj.hada_w2_b": [2, 8],
        "lora_unet_mid_block_out.lokr_w1": [2, 2],
        "lora_unet_mid_block_out.lokr_w2_a": [4, 2],
        "lora_unet_mid_block_out.lokr_w2_b": [2, 4],
        "lora_unet_mid_block_out.alpha": [1],
    },
    {
        "diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight": [2, 8],
        "diffusion_model.double_blocks.0.img_attn.qkv.lora_B.weight": [24, 2],
        "double_blocks.1.processor.proj_lora2.down.weight": [2, 8],
        "double_blocks.1.processor.proj_lora2.up.weight": [8, 2],
        "lora_unet_final_layer_adaLN_modulation_1.lokr_w1": [2, 2],
        "lora_unet_final_layer_adaLN_modulation_1.lokr_w2": [8, 4],
    },
)
SETTINGS = {
    "unet.r": 4,
    "unet.lora_alpha": 8,
    "unet.rank_pattern": {"attn1.to_q": 2},
    "unet.alpha_pattern": {"attn1.to_q": 2.0, ".*attn2.*": 4},
    "unet.use_rslora": True,
}
CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "rank_pattern": {},
    "alpha_pattern": {r"down_blocks\.\d+.*(to_q|to_k)": 4},
    "auto_mapping": {"base_model_class": "UNet2DConditionModel"},
    "init_lora_weights": True,
}
NOTES = {
    "ss_network_module": "lycoris.kohya",
    "ss_network_args": '{"algo": "loha"}',
    "ss_tag_frequency": '{"10_cat": {"cat": 10, "dog": 2}}',
    "modelspec.prediction_type": "v",
    "modelspec.title": "Title",
    "modelspec.trigger_phrase": "cat, dog",
    "ss_v_parameterization": "True",
}


def damaged_header(rng, shapes, metadata):
    """Return the bytes of a safetensors file, damaged in its names, shapes, header or bytes."""
    shapes = dict(shapes)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        name = rng.choice(list(shapes))
        match rng.randrange(3):
            case 0:
                shapes.pop(name) if len(shapes) > 1 else None
            case 1:
                odd = [rng.choice((0, 1, 2, 4, 9, 77, 320)) for _ in range(rng.randrange(6))]
                shapes[name] = odd if np.prod(odd) < 1 << 16 else odd[:1]
            case _:
                parts = name.split(".")
                parts[rng.randrange(len(parts))] = rng.choice((*TEXTS, "0", "1", "99999", "weight"))
                shapes[".".join(parts)] = shapes.pop(name)
    header, offset = {}, 0
    for name, shape in shapes.items():
        dtype = rng.choice(("F16",) * 60 + ("F32", "BF16", "F8_E4M3", "I64", "BOOL", "F64", "U8"))
        size = int(np.prod(shape, dtype=np.int64)) * {"F16": 2, "F32": 4, "BF16": 2, "F64": 8, "I64": 8}.get(dtype, 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    if metadata:
        header["__metadata__"] = metadata
    text = damage_json(rng, header, rng.choice((0, 0, 0, 1, 2)))
    data = struct.pack("<Q", len(text)) + text + rng.randbytes(offset)
    return damage_bytes(rng, data[:4000]) + data[4000:] if rng.random() < 0.08 else data


def some(rng, notes):
    return {key: value for key, value in notes.items() if rng.random() < 0.7}


@RUNS
def test_damaged_safetensors_files_are_read_or_refused(tmp_path, runs):
    path = tmp_path / "a.safetensors"

    def make(rng):
        shapes = rng.choice((CHECKPOINT, CHECKPOINT, *ALONE, *LORAS))
        kept = {name: shape for name, shape in shapes.items() if rng.random() < 0.93} or shapes
        notes = {key: damage_json(rng, value).decode("utf-8", "replace") for key, value in some(rng, NOTES).items()}
        return damaged_header(rng, kept, notes if rng.random() < 0.5 else None)

    def read(data):
        path.write_bytes(data)
        found = describe_weight_file(path)
        json.dumps(found.to_json(), allow_nan=False)
        assert list(found.summary_lines())
        if found.identity.kind == "checkpoint":
            file = SingleFile.open(path, None, None)
            for part in found.identity.parts:
                file.config(part.folder)

    feed(read, make, runs).check(0.2)


@RUNS
def test_damaged_gguf_files_are_read_or_refused(tmp_path, runs):
    from tests.fixtures.gguf_files import write_gguf

    path = tmp_path / "a.gguf"
    random = np.random.default_rng(0)
    shapes = {"cap_embedder.1.weight": (64, 32), "layers.0.attention.qkv.weight": (96, 32), "x_pad_token": (1, 32)}
    state = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    samples = []
    for form, rows_of_256 in (("Q8_0", False), ("Q4_K", True), ("F16", False)):
        write_gguf(path, state, form, rows_of_256=rows_of_256)
        samples.append(path.read_bytes())

    def make(rng):
        data = rng.choice(samples)
        end = data.index(b"x_pad_token") + 48
        if rng.random() < 0.4:
            return damage_bytes(rng, data[:end]) + data[end:]
        place = rng.randrange(len(data) if rng.random() < 0.2 else end)
        return data[:place] + rng.randbytes(1) + data[place + 1 :] if rng.random() < 0.9 else data[:place]

    def read(data):
        path.write_bytes(data)
        found = describe_weight_file(path)
        assert list(found.summary_lines())
        for raw in found.header.tensors.values():
            if raw.dtype in DTYPES or raw.dtype in BLOCK_FORMS:
                read_tensor(Tensor(raw.dtype, raw.shape, "f", raw.offset), {"f": path})

    feed(read, make, runs).check(0.1)


@RUNS
def test_damaged_ip_adapters_are_read_or_refused(tmp_path, runs):
    path = tmp_path / "a.safetensors"

    def make(rng):
        shapes = rng.choice(IP_ADAPTERS)
        kept = {name: shape for name, shape in shapes.items() if rng.random() < 0.98} or shapes
        return damaged_header(rng, kept, None)

    def read(data):
        path.write_bytes(data)
        found = read_ip_adapter(path, None)
        assert found.width > 0 < found.encoder_width
        found.check_family(found.width, "here")
        found.layers_for([f"x{number}.attn2.to_k.weight" for number in range(2)])

    feed(read, make, runs).check(0.1)


@RUNS
def test_damaged_loras_are_opened_or_refused(tmp_path, runs):
    path = tmp_path / "a.safetensors"
    config = tmp_path / CONFIG_NAME

    def make(rng):
        metadata = some(rng, NOTES)
        for key in metadata:
            if rng.random() < 0.4:
                try:
                    value = json.loads(metadata[key])
                except ValueError:
                    value = metadata[key]
                metadata[key] = damage_json(rng, value).decode("utf-8", "replace")
        if rng.random() < 0.4:
            times = rng.choice((0, 1, 1, 2))
            metadata[METADATA_KEY] = damage_json(rng, SETTINGS, times).decode("utf-8", "replace")
        config = damage_json(rng, CONFIG, rng.choice((0, 0, 0, 1, 2)))
        return damaged_header(rng, rng.choice(LORAS), metadata), config

    def read(sample):
        path.write_bytes(sample[0])
        config.write_bytes(sample[1])
        lora = open_lora(path)
        training_notes(lora.metadata)
        assert lora.modules

    feed(read, make, runs).check(0.1)


@RUNS
def test_damaged_onnx_files_are_read_or_refused(tmp_path, runs):
    path = tmp_path / "model.onnx"
    (tmp_path / "data.bin").write_bytes(bytes(128))
    read_all_ways(path, (_inspect, _specs), runs)


def _inspect(path):
    found = inspect_model(path)
    json.dumps(found.to_json())
    assert list(found.summary_lines())


def _specs(path):
    graph = read_model_file(path).graph
    value_specs(graph.input, graph.initializer)
