"""An ONNX file as a table of its weights and a graph without them; no weight is read.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.extras.adopt.onnx_tensor import OnnxTensor, TensorPlaces, read_tensor_proto
from olivelike.sources.files.onnx_wire import DEEPEST_GRAPH, Field, WireError, WireReader, read_text
from olivelike.sources.files.weight_header import DOWNLOAD_AGAIN, LFS_POINTER, RawTensor, refuse_pointer

WEIGHT_ELEMENTS: Final = 2
"""Float initializers of so many elements are weights; scalars stay in the graph."""
CONSTANT_BYTES: Final = 1 << 15
"""Values of `Constant` nodes of so many bytes are weights; masks, which fusion looks at, are smaller."""
_KEPT_BYTES: Final = 1 << 24
"""A graph is a few MB; a larger tensor that can't be held out would make it none."""

_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_FUNCTION_NODE = 7
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11

_EXTERNAL_ENTRY = b"location"
"""Key of what says in which data file a tensor's values lie; a node without it has none there."""
_TAKES_CONSTANTS = (b"InstanceNormalization", b"Resize", b"Upsample")
"""Operators whose float operands are constants, by which exporters spell group norms and upsampling."""
_NODE_BYTES = 1024
"""A longer node has a tensor, or a graph of its own."""


@dataclass(frozen=True)
class OnnxTable:
    """Content of an ONNX file, split in weights and graph."""

    tensors: Mapping[str, tuple[RawTensor, Path]]
    """Weight → tensor and the file that holds it, which is the model file or a data file beside it.

    A weight is a float initializer of `WEIGHT_ELEMENTS` or more, or the value of a `Constant` node of
    `CONSTANT_BYTES` or more, by its name in the graph."""
    graph: bytes
    """The serialised model; weights have name, type and shape and no values, so it is no valid model by itself."""


def read_onnx_table(path: Path, locate: Callable[[str], Path] | None = None) -> OnnxTable:
    """Split the ONNX file at `path` in a table of weights and a graph, by seeking over what is not needed.

    Equal graphs give equal `graph` bytes wherever their weights lie: in the model file or beside it. Raises
    `SourceError` if a file is missing, truncated, a Git LFS pointer or no ONNX file, or has tensors that can't be held
    out.

    Args:
        locate: returns the path of a data file by its location relative to the model file's folder; by default it
            must lie there.
    """
    try:
        with open_file(path) as file:
            reader = WireReader(file)
            _check_start(path, reader)
            return _Splitter(path, reader, TensorPlaces(path, locate)).split()
    except WireError as error:
        raise SourceError(f"{path}: not a valid ONNX file: {error}; {DOWNLOAD_AGAIN}") from error
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; {DOWNLOAD_AGAIN}") from error


def _check_start(path: Path, reader: WireReader) -> None:
    if reader.size == 0:
        raise SourceError(f"{path}: the file is empty, its download did not finish; {DOWNLOAD_AGAIN}")
    refuse_pointer(path, reader.read(0, min(reader.size, len(LFS_POINTER))), reader.size)


class _Splitter:
    """Copies one model, without its weights."""

    def __init__(self, path: Path, reader: WireReader, places: TensorPlaces) -> None:
        self._path = path
        self._reader = reader
        self._places = places
        self._tensors: dict[str, tuple[RawTensor, Path]] = {}
        self._depth = 0

    def split(self) -> OnnxTable:
        graphs = []

        def outermost(field: Field) -> bytes:
            graphs.append(field)
            return self._graph(field, outermost=True)

        function = {_FUNCTION_NODE: lambda field: self._node(field, outermost=False)}
        parts = {
            _MODEL_GRAPH: outermost,
            _MODEL_FUNCTIONS: lambda field: self._reader.copy(field.start, field.end, function),
        }
        copy = self._reader.copy(0, self._reader.size, parts)
        if len(graphs) != 1:
            raise WireError("it has no graph")
        return OnnxTable(self._tensors, copy)

    def _graph(self, graph: Field, *, outermost: bool) -> bytes:
        self._depth += 1
        if self._depth > DEEPEST_GRAPH:
            raise WireError(f"its graphs are nested deeper than {DEEPEST_GRAPH} levels")
        constants: set[str] = set()

        def initializer(field: Field) -> bytes:
            tensor = read_tensor_proto(self._reader, field)
            large = outermost and math.prod(tensor.shape) >= WEIGHT_ELEMENTS
            return self._tensor(tensor, tensor.name if large and tensor.name not in constants else "")

        def node(field: Field) -> bytes:
            copy = self._node(field, outermost=outermost)
            if any(op_type in copy for op_type in _TAKES_CONSTANTS):
                constants.update(self._constants(field))
            return copy

        copy = self._reader.copy(graph.start, graph.end, {_GRAPH_INITIALIZER: initializer, _GRAPH_NODE: node})
        self._depth -= 1
        return copy

    def _constants(self, node: Field) -> set[str]:
        """Return the inputs of a node that takes constants."""
        texts = self._texts(self._reader.fields(node.start, node.end), _NODE_OP_TYPE, _NODE_INPUT)
        takes = any(op_type.encode() in _TAKES_CONSTANTS for op_type in texts[_NODE_OP_TYPE])
        return set(texts[_NODE_INPUT]) if takes else set()

    def _node(self, node: Field, *, outermost: bool) -> bytes:
        if node.end - node.start < _NODE_BYTES:
            whole = self._reader.part(node.start, node.end)
            if _EXTERNAL_ENTRY not in whole:
                return whole
        fields = self._reader.fields(node.start, node.end)
        texts = self._texts(fields, _NODE_OP_TYPE, _NODE_OUTPUT, _NODE_DOMAIN)
        is_constant = texts[_NODE_OP_TYPE] == ["Constant"] and texts[_NODE_DOMAIN] in ([], [""])
        name = texts[_NODE_OUTPUT][0] if is_constant and outermost and texts[_NODE_OUTPUT] else ""
        return self._reader.copy(node.start, node.end, {_NODE_ATTRIBUTE: lambda field: self._attribute(field, name)})

    def _attribute(self, attribute: Field, constant: str) -> bytes:
        """Copy an attribute; `constant` is the name of the value that its tensor defines, if it does."""

        def tensor(field: Field) -> bytes:
            found = read_tensor_proto(self._reader, field)
            weight = field.number == _ATTRIBUTE_TENSOR and found.nbytes >= CONSTANT_BYTES
            return self._tensor(found, constant if weight else "")

        def graph(field: Field) -> bytes:
            return self._graph(field, outermost=False)

        inner = {
            _ATTRIBUTE_TENSOR: tensor,
            _ATTRIBUTE_TENSORS: tensor,
            _ATTRIBUTE_GRAPH: graph,
            _ATTRIBUTE_GRAPHS: graph,
        }
        return self._reader.copy(attribute.start, attribute.end, inner)

    def _tensor(self, tensor: OnnxTensor, name: str) -> bytes:
        """Return a tensor without its values if it is held out under `name`, else with them."""
        if name and tensor.dtype:
            place = self._places.find(tensor)
            if place is not None:
                if name in self._tensors:
                    raise WireError(f"the name {name} occurs twice")
                file, offset = place
                self._tensors[name] = RawTensor(tensor.dtype, tensor.shape, offset), file
                return tensor.bare
        if max(tensor.nbytes, tensor.field.end - tensor.field.start) > _KEPT_BYTES:
            raise SourceError(
                f"{self._path}: tensor {tensor.name or name} has {tensor.nbytes} bytes {tensor.form}, which can't "
                "be held out of the graph; export the model in float32 or float16, with onnx.save and external data"
            )
        if tensor.external:
            return self._places.embedded(tensor)
        return self._reader.part(tensor.field.start, tensor.field.end)

    def _texts(self, fields: Iterable[Field], *numbers: int) -> dict[int, list[str]]:
        """Return the texts in the fields of some numbers."""
        found: dict[int, list[str]] = {number: [] for number in numbers}
        for field in fields:
            if field.number in found:
                found[field.number].append(read_text(self._reader, field))
        return found
