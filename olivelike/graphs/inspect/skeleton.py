"""An ONNX file without the values of its weights, which may be gigabytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.model.onnx_messages import ModelProto
from olivelike.sources.files.onnx_wire import Field, WireError, WireReader
from olivelike.sources.files.weight_table import require_onnx_model

_KEPT: Final = 64
"""Values up to this many bytes are kept: shapes and scalars are worth showing."""
_MODEL_GRAPH: Final = 7
_GRAPH_NODE: Final = 1
_GRAPH_INITIALIZER: Final = 5
_LONG_NODE: Final = 1 << 16
_TENSOR_VALUES: Final = (4, 5, 6, 7, 9, 10, 11)


def read_model(path: Path, message: Any = ModelProto) -> Any:
    """Return the model in a file, with the values of its larger initializers left out.

    Raises `SourceError` when the file can't be read, or is no ONNX model.

    Args:
        path: Any file.
        message: The class of the model: that of `onnx_messages`, or of `onnx`.
    """
    require_onnx_model(path)
    try:
        model = message.FromString(read_skeleton(path))
    except DecodeError as error:
        raise SourceError(f"{path}: is not an ONNX model") from error
    if not model.HasField("graph") or not model.opset_import:
        raise SourceError(f"{path}: is not an ONNX model: it has no graph, or names no opset")
    return model


def read_skeleton(path: Path) -> bytes:
    """Return the serialised model with the values of its larger initializers left out.

    Raises `SourceError` when the file can't be read or is no protobuf message.
    """
    try:
        with open_file(path) as file:
            reader = WireReader(file)
            return reader.copy(0, reader.size, {_MODEL_GRAPH: lambda graph: _graph(reader, graph)})
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from error
    except WireError as error:
        raise SourceError(f"{path}: is not an ONNX model: {error}") from error


def _graph(reader: WireReader, graph: Field) -> bytes:
    def short(values: Field) -> bytes:
        return reader.part(values.start, values.end) if values.end - values.start <= _KEPT else b""

    def tensor(field: Field) -> bytes:
        return reader.copy(field.start, field.end, dict.fromkeys(_TENSOR_VALUES, short))

    def node(field: Field) -> bytes:
        if field.end - field.start > _LONG_NODE:
            for _ in reader.fields(field.start, field.end):
                pass  # They are counted; millions of attributes take gigabytes to parse.
        return reader.part(field.start, field.end)

    return reader.copy(graph.start, graph.end, {_GRAPH_INITIALIZER: tensor, _GRAPH_NODE: node})
