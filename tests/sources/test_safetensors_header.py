from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file

from olivelike.errors import SourceError
from olivelike.sources import Checkpoint, read_header
from olivelike.sources.files.weight_table import read_weight_table

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_offsets_point_at_the_bytes_that_the_format_s_own_library_wrote(tmp_path: Path) -> None:
    tensors = {
        "matrix": torch.randn(3, 5),
        "half": torch.randn(4).half(),
        "brain": torch.randn(2, 2).bfloat16(),
        "ids": torch.arange(6)[None],
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
    }
    path = tmp_path / "a.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert header.file_size == path.stat().st_size
    assert header.tensors.keys() == tensors.keys()
    data = path.read_bytes()
    for name, tensor in tensors.items():
        stored = header.tensors[name]
        assert stored.shape == tuple(tensor.shape)
        piece = data[stored.offset : stored.offset + tensor.nbytes]
        assert piece == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_a_truncated_file_tells_expected_and_found_size(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"w": entry(0, 16, [4])}, bytes(16))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(
        SourceError, match=rf"a\.safetensors: truncated: {size} bytes expected, {size - 5} found.*hf download"
    ):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"abc", "truncated: at least 8 bytes expected, 3 found"),
        (struct.pack("<Q", 100) + b"{", "truncated: at least 108 bytes expected, 9 found"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html>not found</html>", "not a valid safetensors file"),
    ],
)
def test_what_is_no_safetensors_file_is_named_for_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=message):
        read_header(path)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "can't be parsed"),
        (b"[]", b"", "no JSON object"),
        (b'{"__metadata__": 3}', b"", "metadata"),
        (b'{"a": {}, "a": {}}', b"", "twice"),
        ({"w": 3}, b"", "lacks dtype"),
        ({"w": entry(0, 4, [-1])}, bytes(4), "no counts"),
        ({"w": entry(0, 8, [1])}, bytes(8), "8 bytes where its shape needs 4"),
        ({"w": entry(4, 8, [1])}, bytes(8), "begins at 4 where 0 is due"),
        ({"v": entry(0, 8, [2]), "w": entry(4, 12, [2])}, bytes(12), "begins at 4 where 8 is due"),
        ({"w": entry(0, 4, [1])}, bytes(9), "header accounts for"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_header(write(tmp_path / "a.safetensors", header, data))


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone\.safetensors: can't be read"):
        read_header(tmp_path / "gone.safetensors")


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(min_value=0), flip=st.integers(min_value=0), value=st.integers(0, 255))
def test_damage_anywhere_is_read_or_refused_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    content = bytearray(write(path, {"v": entry(0, 8, [2]), "w": entry(8, 12, [1])}, bytes(12)).read_bytes())
    content[flip % len(content)] = value
    path.write_bytes(content[: cut % (len(content) + 1)])
    try:
        header = read_header(path)
    except SourceError:
        return
    assert all(tensor.offset <= header.file_size for tensor in header.tensors.values())


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x10480])
def test_a_header_whose_length_begins_like_a_pickle_is_a_header(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "a.safetensors", json.dumps({"a": entry(0, 4, [1])}).ljust(length).encode(), bytes(4))
    assert read_weight_table(path).tensors == read_header(path).tensors


def test_a_dtype_that_is_not_known_is_refused_where_the_tensor_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"new": entry(0, 4, [1], "X9"), "w": entry(4, 8, [1])}, bytes(8))
    tensors = {name: (tensor, path) for name, tensor in read_header(path).tensors.items()}
    Checkpoint("unet", "diffusers", "UNet2DConditionModel", {}, {"w": tensors["w"]})
    with pytest.raises(SourceError, match=r"a\.safetensors: tensor new is stored as X9, which is not supported; use"):
        Checkpoint("unet", "diffusers", "UNet2DConditionModel", {}, tensors)
