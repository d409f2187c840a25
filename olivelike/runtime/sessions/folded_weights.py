"""Weights of 12 bits, widened before a session opens.

A graph spells such a weight in nine operators (`olivelike.graphs.quantisation`), which ONNX Runtime folds to a constant
as it opens. It keeps what each of them gives until all are folded, and the C library keeps what is freed then: 1.6 GB
for SD 1.5's UNet, whose constants have 0.27. Here threads make the same numbers, to the bit, a piece at a time, and the
session gets a graph without these operators.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import open_file, read_bytes
from olivelike.errors import SessionError

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model.onnx_messages import GraphProto, NodeProto, TensorProto

    Array = np.ndarray[Any, Any]
    Pattern = str | tuple[Any, ...]

_MARK: Final = b".lower"
"""Ends the names of lower bits; a file without it is not parsed."""
_MOST_BYTES: Final = 64 << 20
"""Most bytes of a graph whose weights are in data files."""
_PIECE_VALUES: Final = 1 << 18
"""Number of values that are widened at a time: they stay in the cache from one step to the next."""
_THREADS: Final = 4

_BYTES: Final = ("Mul", ("Cast", "lower"), "sixteenth")
_SECOND: Final = ("Floor", _BYTES)
_NUMBERS: Final = (
    "Add", ("Cast", "upper"), ("Concat", ("Sub", _BYTES, _SECOND), ("Mul", _SECOND, "sixteenth")),
)  # fmt: skip
_CHAINS: Final = (("Mul", _NUMBERS, "scales"), ("Half", ("Mul", _NUMBERS, ("Cast", "scales"))))
"""Operators of a weight in float32, and of one in float16: each with its inputs, or what an initializer is. Cast is
one to float32, Half one to float16."""


@dataclass(frozen=True)
class FoldedModel:
    """A model whose weights of 12 bits are constants."""

    content: bytes
    """Serialised; its data files are the model's."""
    arrays: Mapping[str, Array]
    """Values of these constants, which a session copies."""
    parts: frozenset[str]
    """Initializers that the model had in their place."""


@dataclass(frozen=True)
class _Weight:
    """A constant, and the initializers that it is made of."""

    name: str
    upper: TensorProto
    lower: TensorProto
    scales: TensorProto
    inner: frozenset[str]
    """Values between them."""


def fold(path: Path, given: Mapping[str, Array], content: bytes | None = None) -> FoldedModel | None:
    """Widen a model's weights of 12 bits; `None` where there are none, or where they can't be told.

    Raises `SessionError` if a data file can't be read.

    Args:
        path: The model, beside its data files.
        given: Arrays in place of its initializers, by name.
        content: What is opened in its place.
    """
    try:
        content = read_bytes(path, _MOST_BYTES) if content is None else content
    except OSError:
        return None
    if _MARK not in content:
        return None  # Without the import of protobuf.

    from google.protobuf.message import DecodeError

    from olivelike.model.onnx_messages import ModelProto, TensorProto, dtype_of

    try:
        model = ModelProto.FromString(content)
    except DecodeError:
        return None
    graph = model.graph
    if not (weights := list(_weights(graph))):
        return None
    dtypes = {one.name: dtype_of(one.scales) for one in weights}
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        widened = pool.map(lambda one: _widen(path, one, given, dtypes[one.name]), weights)
        arrays = {one.name: array for one, array in zip(weights, widened, strict=True)}

    gone = {name for one in weights for name in (one.name, *one.inner)}
    nodes = [node for node in graph.node if gone.isdisjoint(node.output)]
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    parts = {tensor.name for one in weights for tensor in (one.upper, one.lower, one.scales)} - read
    kept = [tensor for tensor in graph.initializer if tensor.name not in parts]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for one in weights:
        placed = graph.initializer.add(
            name=one.name, data_type=one.scales.data_type, dims=one.upper.dims, data_location=TensorProto.EXTERNAL
        )
        placed.external_data.add(key="location", value=path.name)  # Never read, since an array is given.
    return FoldedModel(model.SerializeToString(), arrays, frozenset(parts))


def _weights(graph: GraphProto) -> Iterator[_Weight]:
    """Find the chains of operators in a graph."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    readers = defaultdict(set)
    nodes = [node for node in graph.node if node.output]
    for node in nodes:
        for name in node.input:
            readers[name].add(node.output[0])
    for value in graph.output:
        readers[value.name].add("")

    def match(name: str, pattern: Pattern, found: dict[str, str], inner: set[str]) -> bool:
        """Tell whether a value is made so; note names of initializers by their parts, and of the values between."""
        if isinstance(pattern, str):
            return name in tensors and found.setdefault(pattern, name) == name
        node = makers.get(name)
        operator, *inputs = pattern
        if node is None or _operator(node) != operator or len(node.input) != len(inputs):
            return False
        inner.add(name)
        return all(match(*pair, found, inner) for pair in zip(node.input, inputs, strict=True))

    for node in nodes:
        for chain in _CHAINS:
            found: dict[str, str] = {}
            inner: set[str] = set()
            if not match(node.output[0], chain, found, inner):
                continue
            name = node.output[0]
            inner.discard(name)
            upper, lower, scales, unit = (tensors[found[part]] for part in ("upper", "lower", "scales", "sixteenth"))
            alone = all(readers[value] <= inner | {name} for value in inner)
            if alone and _is_sixteenth(unit) and _fit(upper, lower, scales):
                yield _Weight(name, upper, lower, scales, frozenset(inner))


def _operator(node: NodeProto) -> str:
    """Return an operator as chains have it."""
    if node.op_type != "Cast":
        return node.op_type if not node.domain else f"{node.domain}.{node.op_type}"
    to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    return {1: "Cast", 10: "Half"}.get(to, f"Cast to {to}")


def _is_sixteenth(tensor: TensorProto) -> bool:
    from olivelike.model.onnx_messages import to_array

    inside = tensor.data_location != tensor.EXTERNAL and tensor.data_type == tensor.FLOAT
    return inside and bool(to_array(tensor).tolist() == 1 / 16)


def _fit(upper: TensorProto, lower: TensorProto, scales: TensorProto) -> bool:
    """Tell whether three initializers are the parts of one weight, and can be read here."""
    if min(upper.dims, default=0) < 1:
        return False
    rows, *others = upper.dims
    types = (upper.data_type, lower.data_type, scales.data_type in (scales.FLOAT, scales.FLOAT16))
    return (
        types == (upper.INT8, upper.UINT8, True)
        and list(lower.dims) == [rows // 2, *others]
        and rows % 2 == 0
        and len(scales.dims) == len(upper.dims)
        and all(one in (1, whole) for one, whole in zip(scales.dims, upper.dims, strict=True))
        and all(_is_here(tensor) for tensor in (upper, lower, scales))
    )


def _is_here(tensor: TensorProto) -> bool:
    """Tell whether a tensor's bytes are in the model, or in a file of its folder."""
    if tensor.data_location != tensor.EXTERNAL:
        return len(tensor.raw_data) == _bytes(tensor)
    place = {entry.key: entry.value for entry in tensor.external_data}
    return Path(place.get("location", "..")).name == place.get("location") and place.get("offset", "0").isdecimal()


def _bytes(tensor: TensorProto) -> int:
    widths: dict[int, int] = {tensor.FLOAT: 4, tensor.FLOAT16: 2}
    return int(prod(tensor.dims)) * widths.get(tensor.data_type, 1)


def _widen(path: Path, one: _Weight, given: Mapping[str, Array], dtype: np.dtype[Any]) -> Array:
    """Return scale · (upper + lower / 16), computed in float32."""
    import numpy as np

    upper, lower, scales = (_values(path, tensor, given) for tensor in (one.upper, one.lower, one.scales))
    target: Array = np.empty(upper.shape, dtype)
    half = len(lower)
    step = max(1, _PIECE_VALUES // max(1, prod(upper.shape[1:])))
    for start in range(0, half, step):
        piece = slice(start, min(start + step, half))
        bytes_ = lower[piece]
        for numbers, shift in ((bytes_ & 15, 0), (bytes_ >> 4, half)):
            rows = slice(piece.start + shift, piece.stop + shift)
            wide = numbers.astype(np.float32)
            wide *= np.float32(1 / 16)
            wide += upper[rows]
            wide *= scales[rows] if len(scales) > 1 else scales
            target[rows] = wide
    return target


def _values(path: Path, tensor: TensorProto, given: Mapping[str, Array]) -> Array:
    import numpy as np

    from olivelike.model.onnx_messages import dtype_of, to_array

    if tensor.name in given:
        return given[tensor.name]
    if tensor.data_location != tensor.EXTERNAL:
        return to_array(tensor)
    place = {entry.key: entry.value for entry in tensor.external_data}
    data = path.parent / place["location"]
    offset = int(place.get("offset", 0))
    try:
        with open_file(data) as file:
            if offset + _bytes(tensor) > file.seek(0, os.SEEK_END):
                raise SessionError(f"{data}: is cut short in {tensor.name}; get the file again")
            file.seek(offset)
            values: Array = np.fromfile(file, dtype_of(tensor), prod(tensor.dims)).reshape(tensor.dims)
    except OSError as error:
        raise SessionError(f"{data}: can't be read: {error.strerror}; check the file") from error
    return values
