"""Files that no random damage makes: each is answered at once, with an error of ours."""

from __future__ import annotations

import json
import os
import struct
import zlib

import pytest
from hostile import nested_graphs
from test_fuzz_weights import LORAS

from olivelike.errors import OlivelikeError, SourceError, UsageError
from olivelike.graphs.inspect import inspect_model
from olivelike.runtime.pictures import read_picture
from olivelike.runtime.pictures.picture_reading import decode_image
from olivelike.runtime.pictures.picture_record import record_from_json
from olivelike.runtime.pictures.recipe_text import parse_a1111
from olivelike.runtime.prompts.syntax import parse_prompt
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.files import onnx_wire
from olivelike.sources.files.onnx_wire import encode_bytes, encode_number
from olivelike.sources.identify.weight_file import describe_weight_file


def safetensors(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({f"t{number}": entry(0, 0, [0]) for number in range(50_001)}, "more than 50,000 tensors"),
        (b"[" * 1_000_000, "more than 50,000 tensors"),
        (b'{"a":' + b"[" * 20_000, "nested deeper"),
        ({"a": {"dtype": ["F32"], "shape": [], "data_offsets": [0, 4]}}, "a dtype or shape that is none"),
        ({"a": entry(0, 0, [0] * 17)}, "a dtype or shape that is none"),
        ({"a": entry(2**63, 2**63, [0])}, "no counts"),
        ({"a": entry(-4, 0, [1])}, "no counts"),
        ({"__metadata__": {"a": 1}}, "metadata a is no text"),
        ({"x" * 301: entry(0, 0, [0])}, "has 301 characters"),
        (b'{"\\ud800": {}}', "half of a surrogate pair"),
        (b'{"a": 1e999}', "too large"),
    ],
)
def test_headers_that_lie_or_are_too_large_are_refused(tmp_path, header, why):
    with pytest.raises(SourceError, match=why):
        describe_weight_file(safetensors(tmp_path / "a.safetensors", header))


def test_a_pipe_is_no_weight_file_and_no_picture(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(SourceError, match="only regular files"):
        describe_weight_file(tmp_path / "a.safetensors")


@pytest.mark.parametrize("name", ["decoder.conv_in.weight", "emb_params", "x.attn2.to_k.lora_A.weight"])
def test_tensors_without_dimensions_are_identified_all_the_same(tmp_path, name):
    header = {name: entry(0, 4, []), "decoder.mid.block_1.conv1.weight": entry(4, 8, [1])}
    path = safetensors(tmp_path / "a.safetensors", header, bytes(8))
    assert list(describe_weight_file(path).summary_lines())


@pytest.mark.parametrize(
    "settings", ['{"unet.r": 1e999}', "[" * 50_000, '{"unet.rank_pattern": {"(?=x)": 1}}', '{"unet.rank_pattern": 1}']
)
def test_settings_of_a_lora_that_are_none_are_refused(tmp_path, settings):
    header = {name: entry(0, 0, [0]) for name in LORAS[1]} | {"__metadata__": {"lora_adapter_metadata": settings}}
    with pytest.raises(SourceError):
        open_lora(safetensors(tmp_path / "a.safetensors", header))


def test_onnx_files_that_nest_or_repeat_without_end_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(nested_graphs(2000))
    with pytest.raises(SourceError):
        inspect_model(path)
    monkeypatch.setattr(onnx_wire, "_MOST_FIELDS", 40_000)
    attributes = encode_bytes(7, encode_bytes(1, encode_bytes(5, b"") * 41_000))
    path.write_bytes(encode_bytes(8, encode_number(2, 18)) + attributes)
    with pytest.raises(SourceError, match="more than 40,000 parts"):
        inspect_model(path)


@pytest.mark.parametrize(
    ("side", "told"), [(9000, "has 9000x9000 pixels, and at most"), (30000, "has far more pixels")]
)
def test_a_picture_of_very_many_pixels_is_refused_before_it_is_decoded(tmp_path, side, told):
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for name, chunk in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")):
        data += struct.pack(">I", len(chunk)) + name + chunk + struct.pack(">I", zlib.crc32(name + chunk))
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(SourceError, match=f"{told}.*; make it smaller"):
        read_picture(tmp_path / "a.png")
    with pytest.raises(SourceError, match=f"{told}.*; make it smaller"):
        decode_image(data, "the upload")


@pytest.mark.parametrize("value", ["Infinity", "1e999", "1" + "0" * 400, "[" * 3000])
def test_records_with_numbers_or_depths_beyond_all_are_damaged(value):
    text = f'{{"format": "olivelike/picture/1", "prompt": "a", "guidance_scale": {value}}}'
    with pytest.raises(SourceError):
        record_from_json(text, "a.png")


def test_numbers_of_a1111_that_are_none_stay_text():
    found = parse_a1111("a\nSteps: 20, CFG scale: inf, Eta: nan, Seed: 1")
    assert (found.guidance_scale, found.eta, found.other["CFG scale"]) == (None, 0.0, "inf")
    assert found.to_json()
    with pytest.raises(SourceError, match="no line of settings"):
        parse_a1111("a" + " " * 200_000 + "b")


@pytest.mark.parametrize("text", ["(a:1" + "0" * 400 + ")", "((a:9999):9999)", "x" * 20_001])
def test_prompts_with_weights_or_lengths_beyond_all_are_refused(text):
    with pytest.raises(UsageError, match="prompt: "):
        parse_prompt(text)
    assert issubclass(UsageError, OlivelikeError)
