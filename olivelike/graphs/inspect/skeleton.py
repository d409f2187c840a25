"""Read an ONNX file without its weights: everything but the values of initializers, which are skipped unread.

Field numbers are those of `onnx.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.sources.files.onnx_wire import BYTES, MOST_BYTES, Field, WireError, WireReader, encode_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_KEPT: Final = 64
"""Values up to this many bytes are kept: shapes and scalars are worth showing."""
_MODEL_GRAPH: Final = 7
_GRAPH_NODE: Final = 1
_GRAPH_INITIALIZER: Final = 5
_LONG_NODE: Final = 1 << 16
_TENSOR_VALUES: Final = (4, 5, 6, 7, 9, 10, 11)


def read_skeleton(path: Path) -> bytes:
    """Return the serialised model with the values of its larger initializers left out.

    Raises:
        SourceError: when the file can't be read or is no protobuf message.
    """
    try:
        with open_file(path) as file:
            reader = WireReader(file)
            return _copy(reader, 0, reader.size, {_MODEL_GRAPH: _graph})
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from error
    except WireError as error:
        raise SourceError(f"{path}: is not an ONNX model: {error}") from error


def _graph(reader: WireReader, field: Field) -> bytes:
    return _copy(reader, field.start, field.end, {_GRAPH_INITIALIZER: _tensor, _GRAPH_NODE: _node})


def _node(reader: WireReader, field: Field) -> bytes:
    if field.end - field.start > _LONG_NODE:
        for _ in reader.fields(field.start, field.end):
            pass  # They are counted; millions of attributes take gigabytes to parse.
    return reader.read(field.start, field.end)


def _tensor(reader: WireReader, field: Field) -> bytes:
    return _copy(reader, field.start, field.end, dict.fromkeys(_TENSOR_VALUES, _short))


def _short(reader: WireReader, field: Field) -> bytes:
    return reader.read(field.start, field.end) if field.end - field.start <= _KEPT else b""


def _copy(
    reader: WireReader, start: int, end: int, inner: Mapping[int, Callable[[WireReader, Field], bytes]]
) -> bytes:
    """Copy the message from `start` to `end`; fields listed in `inner` are copied by their own function."""
    out = bytearray()
    for field in reader.fields(start, end):
        out += (
            encode_bytes(field.number, inner[field.number](reader, field))
            if field.wire == BYTES and field.number in inner
            else reader.read(field.head, field.end)
        )
        if len(out) > MOST_BYTES:
            raise WireError(f"it has more than {MOST_BYTES:,} bytes beside its weights")
    return bytes(out)
