"""Read an ONNX file without its weights: everything but the values of initializers, which are skipped unread.

An ONNX file is a protobuf message: a sequence of fields, each a key (field number · 8 + wire type) and its value.
Format: https://protobuf.dev/programming-guides/encoding, numbers from `onnx.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CONTINUES: Final = 0x80
_KEPT: Final = 64
"""Values up to this many bytes are kept: shapes and scalars are worth showing."""


def read_skeleton(path: Path) -> bytes:
    """Return the serialised model with the values of its larger initializers left out.

    Raises:
        SourceError: when the file can't be read or is no protobuf message.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _copy(file, size, {_MODEL_GRAPH: _graph})
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(f"{path}: is not an ONNX model: {error}") from error


def _graph(file: BinaryIO, end: int) -> bytes:
    return _copy(file, end, {_GRAPH_INITIALIZER: _tensor})


def _tensor(file: BinaryIO, end: int) -> bytes:
    return _copy(file, end, dict.fromkeys(_TENSOR_VALUES, _short))


def _short(file: BinaryIO, end: int) -> bytes:
    length = end - file.tell()
    if length <= _KEPT:
        return file.read(length)
    file.seek(end)
    return b""


_MODEL_GRAPH: Final = 7
_GRAPH_INITIALIZER: Final = 5
_TENSOR_VALUES: Final = (4, 5, 6, 7, 9, 10, 11)


def _copy(file: BinaryIO, end: int, inner: Mapping[int, Callable[[BinaryIO, int], bytes]]) -> bytes:
    """Copy the message that ends at `end`; fields listed in `inner` are copied by their own function."""
    out = bytearray()
    while file.tell() < end:
        key = _read_varint(file)
        number, wire = key >> 3, key & 7
        out += _varint(key)
        if wire == _VARINT:
            out += _varint(_read_varint(file))
        elif wire == _BYTES:
            length = _read_varint(file)
            if file.tell() + length > end:
                raise ValueError("a field is longer than what holds it")
            content = inner[number](file, file.tell() + length) if number in inner else file.read(length)
            out += _varint(len(content)) + content
        elif wire in {_FIXED32, _FIXED64}:
            out += file.read(4 if wire == _FIXED32 else 8)
        else:
            raise ValueError(f"unknown wire type {wire}")
    return bytes(out)


def _read_varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("the file ends within a field")
        value |= (byte[0] & ~_CONTINUES) << shift
        if byte[0] < _CONTINUES:
            return value
    raise ValueError("a number is longer than 10 bytes")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _CONTINUES:
        out.append(value % _CONTINUES | _CONTINUES)
        value //= _CONTINUES
    out.append(value)
    return bytes(out)
