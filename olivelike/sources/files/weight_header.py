"""Safetensors headers: what a file holds and where, without reading a tensor.

Format: https://huggingface.co/docs/safetensors/index#format: 8 bytes (u64, little-endian) with the length of
a JSON object, the object, and the tensors' bytes, which lie in one piece without holes.

`Header` and `RawTensor` are what files of other formats are read as, too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from olivelike._untrusted import Json, open_file, parse_json
from olivelike.errors import MissingError, SourceError
from olivelike.model.block_forms import BLOCK_FORMS
from olivelike.model.weights import IDENTITY, ITEM_SIZES

_LENGTH_BYTES = 8
_LARGEST_HEADER = 16_000_000
"""Bytes; the format allows 100 MB, of which nothing that is known takes a tenth."""
_MOST_TENSORS = 50_000
"""Checkpoints of SDXL have 2,500, its LoRAs up to 10,000; with more, what they are takes seconds to tell."""
_LONGEST_NAME = 300
_MOST_DIMENSIONS = 16
LFS_POINTER: Final = b"version https://git-lfs"

GGUF_MAGIC: Final = b"GGUF"
DOWNLOAD_AGAIN = "download it again, for instance with `hf download … --force-download`"


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A stored tensor: dtype as safetensors names it, shape, and where in the file its bytes begin."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Header:
    """A weight file's word on itself."""

    tensors: Mapping[str, RawTensor]
    metadata: Mapping[str, str]
    file_size: int


_FORMATS: Final[Mapping[str, str]] = {
    "F64": "d", "F32": "f", "F16": "e", "BF16": "f", "F8_E5M2": "e", "F8_E4M3": "e",
    "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B",
}  # fmt: skip
"""How `struct` unpacks a number."""


def read_numbers(
    file: BinaryIO, path: Path, name: str, tensor: RawTensor, count: int = 1, *, finite: bool = True
) -> list[float]:
    """Return the few values of a stored tensor, without a library.

    Raises `SourceError` if there are not `count` of them, or one is no number where they must be `finite`. `file` is
    open at `path`.
    """
    if math.prod(tensor.shape) != count or tensor.dtype not in _FORMATS:
        wanted = "one number" if count == 1 else f"{count} numbers"
        raise SourceError(
            f"{path}: {name} should be {wanted} and is {tensor.dtype} of shape {list(tensor.shape)}; get the file again"
        )
    file.seek(tensor.offset)
    data = _widened(tensor.dtype, file.read(count * ITEM_SIZES[tensor.dtype]))
    values = [float(value) for value in struct.unpack(f"<{count}{_FORMATS[tensor.dtype]}", data)]
    if tensor.dtype == "F8_E4M3":  # its exponent counts from 7, that of a float16 from 15
        values = [value * 256 for value in values]
    if not finite:
        return values
    if strange := [value for value in values if not math.isfinite(value)]:
        raise SourceError(f"{path}: {name} is {strange[0]}; get the file again, or another version of it")
    return values


def _widened(dtype: str, data: bytes) -> bytes:
    """Return numbers that `struct` does not know as longer ones with the same digits."""
    match dtype:
        case "BF16":  # the upper half of a float32
            return b"".join(b"\0\0" + data[place : place + 2] for place in range(0, len(data), 2))
        case "F8_E5M2":  # the upper half of a float16
            return b"".join(bytes([0, byte]) for byte in data)
        case "F8_E4M3":  # one bit of the exponent less; all bits set is no number
            wide = ((byte & 0x80) << 8 | ((byte & 0x7F) << 7 if byte & 0x7F < 0x7F else 0x7E00) for byte in data)
            return struct.pack(f"<{len(data)}H", *wide)
    return data


def check_dtype(path: Path, name: str, tensor: RawTensor) -> None:
    """Refuse a tensor of a dtype that is not known, with `SourceError`.

    Raises `MissingError` for one that a library reads which is not installed.
    """
    if tensor.dtype in BLOCK_FORMS:
        if find_spec("gguf") is None:
            raise MissingError(
                f"{path}: tensor {name} is stored as {tensor.dtype}, which the library gguf reads, and that is not "
                f"installed; run `pip install 'olivelike[gguf]'`"
            )
    elif tensor.dtype not in (*ITEM_SIZES, IDENTITY):
        raise SourceError(
            f"{path}: tensor {name} is stored as {tensor.dtype[:_LONGEST_NAME]}, which is not supported; "
            f"use a checkpoint in one of {', '.join((*ITEM_SIZES, *BLOCK_FORMS))}"
        )


def read_header(path: Path) -> Header:
    """Read and check the header of the safetensors file at `path`.

    Raises `SourceError` if the file is absent, empty, truncated, a Git LFS pointer, or no safetensors file.
    """
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            start = file.read(_LENGTH_BYTES)
            _check_start(path, start, size)
            (length,) = struct.unpack("<Q", start)
            if length > _LARGEST_HEADER:
                _not_safetensors(
                    path, f"its header would have {length} bytes, and at most {_LARGEST_HEADER:,} are read"
                )
            if _LENGTH_BYTES + length > size:
                _truncated(path, f"at least {_LENGTH_BYTES + length}", size)
            text = file.read(length)
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; {DOWNLOAD_AGAIN}") from error
    return _parse(path, text, size)


def _check_start(path: Path, start: bytes, size: int) -> None:
    if size == 0:
        raise SourceError(f"{path}: the file is empty, its download did not finish; {DOWNLOAD_AGAIN}")
    refuse_pointer(path, start, size)
    if len(start) < _LENGTH_BYTES:
        _truncated(path, f"at least {_LENGTH_BYTES}", size)


def refuse_pointer(path: Path, start: bytes, size: int) -> None:
    """Refuse a file that begins as the pointers do that Git leaves in place of large files.

    Raises `SourceError` if it does.
    """
    if start and start.startswith(LFS_POINTER[: len(start)]):
        raise SourceError(
            f"{path}: this is a Git LFS pointer of {size} bytes in place of the file; "
            "run `git lfs pull` in the repository, or download the file with `hf download`"
        )


def _parse(path: Path, text: bytes, size: int) -> Header:
    # Each tensor has an object and two lists; what is far beyond that is not worth the memory of parsing it.
    if text.count(b"{") + text.count(b"[") > 4 * _MOST_TENSORS:
        _too_many(path)
    try:
        entries = parse_json(text.decode(), _without_repeats)
    except ValueError as error:
        _not_safetensors(path, f"its header can't be parsed ({error})")
    if not isinstance(entries, dict):
        _not_safetensors(path, "its header is no JSON object")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        _not_safetensors(path, "its metadata is no JSON object")
    for key, value in metadata.items():
        if not isinstance(value, str):
            _not_safetensors(path, f"its metadata {key[:_LONGEST_NAME]} is no text")
    if len(entries) > _MOST_TENSORS:
        _too_many(path)

    data_start = _LENGTH_BYTES + len(text)
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, RawTensor] = {}
    for name, entry in entries.items():
        dtype, shape, begin, end = _entry(path, name, entry)
        spans.append((begin, end, name))
        tensors[name] = RawTensor(dtype, shape, data_start + begin)

    expected = 0
    for begin, end, name in sorted(spans):
        if begin != expected:
            _not_safetensors(path, f"tensor {name} begins at {begin} where {expected} is due")
        expected = end
    if data_start + expected > size:
        _truncated(path, str(data_start + expected), size)
    if data_start + expected < size:
        _not_safetensors(path, f"it has {size} bytes where its header accounts for {data_start + expected}")
    return Header(tensors, metadata, size)


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if len(name) > _LONGEST_NAME:
        _not_safetensors(path, f"the name of tensor {name[:_LONGEST_NAME]}… has {len(name)} characters")
    try:
        dtype, dims, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        _not_safetensors(path, f"tensor {name} lacks dtype, shape or data_offsets")
    if not isinstance(dtype, str) or not isinstance(dims, list) or len(dims) > _MOST_DIMENSIONS:
        _not_safetensors(path, f"tensor {name} has a dtype or shape that is none")
    shape = tuple(dims)
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, begin, end)):
        _not_safetensors(path, f"tensor {name} has a shape or offsets that are no counts")
    # A dtype that is not known may be of a part that nobody asks for; who takes the tensor calls `check_dtype`.
    expected = math.prod(shape) * ITEM_SIZES[dtype] if dtype in ITEM_SIZES else end - begin
    if begin > end or end - begin != expected:
        _not_safetensors(path, f"tensor {name} has {end - begin} bytes where its shape needs {expected}")
    return dtype, shape, begin, end


def _without_repeats(pairs: list[tuple[str, Any]]) -> Json:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _too_many(path: Path) -> NoReturn:
    _not_safetensors(path, f"it names more than {_MOST_TENSORS:,} tensors")


def _truncated(path: Path, expected: str, found: int) -> NoReturn:
    raise SourceError(f"{path}: truncated: {expected} bytes expected, {found} found; {DOWNLOAD_AGAIN}")


def _not_safetensors(path: Path, why: str) -> NoReturn:
    raise SourceError(f"{path}: not a valid safetensors file: {why}; {DOWNLOAD_AGAIN}")
