"""Bind a weightless graph to its weights: evaluate what depends on weights alone, stream it to disk.

One tensor at a time goes from the source file through its derivation (cast, transpose, concatenation, …) to
the data file, so memory stays flat in the size of the model. Files are read, never mapped: mapped pages count
as resident memory.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.errors import PassError
from olivelike.half import to_half
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY, weight_values
from olivelike.model.tensor_file import read_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from olivelike.model import Graph, Weights
    from olivelike.pass_api import Progress

MODEL_FILE = "model.onnx"
DATA_FILE = "weights.pb"
"""Name of the data file; diffusers' ONNX pipelines keep a file of this name when they save."""

ALIGNMENT = 4096
"""Offsets in the data file are multiples of this, so that runtimes can map single tensors."""
INLINE_BYTES = 1024
"""Smaller tensors stay inside the model file."""

Array = np.ndarray[Any, Any]


@dataclass
class Materialized:
    """What was written, for the record."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`size` in bytes and `sha256` of each file that was written, by name."""
    derivations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per initializer: the parameters that it derives from, and the operators that derive it."""
    saturated: dict[str, int] = field(default_factory=dict)
    """Finite values beyond ±65,504 that became ±65,504, per initializer."""
    flushed: dict[str, int] = field(default_factory=dict)
    """Non-zero values that became zero, per initializer."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


def materialize(
    graph: Graph, weights: Weights, files: Mapping[str, Path], folder: Path, progress: Progress
) -> Materialized:
    """Write `model.onnx` and its data file into `folder`, which exists.

    Args:
        graph: The weightless graph.
        weights: Table with every parameter of the graph, in the graph's shape; a float dtype other than the
            graph's is converted.
        files: Path of each file that the table refers to, by digest.
        folder: Where to write; files of the same names are replaced.
        progress: Told the bytes read so far, of all.

    Raises:
        PassError: when a parameter is missing or has another shape, or an operator can't be evaluated.
    """
    model = graph.to_ir()
    _check(model.graph, weights)
    derived = weight_values(model.graph)
    evaluator = _Evaluator(model, weights, files, progress)
    result = Materialized()
    with _HashedFile(folder / DATA_FILE) as data:
        for value in list(_weight_roots(model.graph, derived)):
            array, derivation = evaluator.evaluate(value)
            for kind in ("saturated", "flushed"):
                if derivation.lost.get(kind):
                    getattr(result, kind)[derivation.name] = derivation.lost[kind]
            tensor = _write(derivation.name, array, data)
            _replace(model.graph, value, tensor, derived)
            result.derivations[derivation.name] = derivation.record()
    _drop_parameters(model.graph)
    serialised = ir.to_proto(model).SerializeToString(deterministic=True)
    with _HashedFile(folder / MODEL_FILE) as file:
        file.write(serialised)
    result.files = {MODEL_FILE: file.facts(), DATA_FILE: data.facts()}
    return result


def _check(graph: ir.Graph, weights: Weights) -> None:
    for value in graph.inputs:
        name = value.metadata_props.get(PARAMETER_KEY)
        if name is None:
            continue
        if name not in weights:
            raise PassError(f"the weights have no parameter {name!r}, which the graph needs")
        assert value.shape is not None
        expected = tuple(value.shape.numpy())
        if weights[name].shape != expected:
            raise PassError(
                f"parameter {name!r} has shape {weights[name].shape}, the graph needs {expected}; "
                "the config and the weights belong to different networks",
            )


def _weight_roots(graph: ir.Graph, derived: set[ir.Value]) -> Iterator[ir.Value]:
    """Yield each derived weight that is used by what is none, in order of first use."""
    seen: set[ir.Value] = set()
    for node in RecursiveGraphIterator(graph):
        if node.outputs[0] in derived:
            continue
        for value in node.inputs:
            if value in derived and value not in seen:
                seen.add(value)
                yield value
    for value in graph.outputs:
        if value in derived:
            raise PassError(f"output {value.name!r} depends on weights alone")


class _HashedFile:
    """A file that is hashed while it is written, and durable when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._hasher = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hasher.update(data)
        self.size += len(data)

    def facts(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self._hasher.hexdigest()}


@dataclass
class _Derivation:
    name: str
    parameters: list[str] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {"parameters": self.parameters, "operators": [step["operator"] for step in self.operators]}


class _Evaluator:
    """Evaluates derived weights one at a time; what two of them share is computed twice, to hold nothing."""

    def __init__(
        self, model: ir.Model, weights: Weights, files: Mapping[str, Path], progress: Progress
    ) -> None:
        self._opsets = model.opset_imports
        self._ir_version = model.ir_version
        self._weights = weights
        self._files = files
        self._progress = progress
        self._read = 0
        self._total = sum(
            weights[value.metadata_props[PARAMETER_KEY]].nbytes * max(1, len(value.uses()))
            for value in model.graph.inputs
            if PARAMETER_KEY in value.metadata_props
        )
        self._taken: set[str] = set()

    def evaluate(self, root: ir.Value) -> tuple[Array, _Derivation]:
        derivation = _Derivation(name=root.name or "")
        array = self._value(root, derivation)
        # A weight that derives from one parameter goes by that parameter's name.
        if len(derivation.parameters) == 1 and derivation.parameters[0] not in self._taken:
            derivation.name = derivation.parameters[0]
        while derivation.name in self._taken:
            derivation.name += ".again"
        self._taken.add(derivation.name)
        return np.asarray(array, order="C"), derivation

    def _value(self, value: ir.Value, derivation: _Derivation) -> Array:
        if PARAMETER_KEY in value.metadata_props:
            return self._parameter(value, derivation)
        if value.const_value is not None:
            return value.const_value.numpy()
        node = value.producer()
        assert node is not None
        operands = [None if operand is None else self._value(operand, derivation) for operand in node.inputs]
        derivation.operators.append({"operator": node.op_type})
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT16:
            assert operands[0] is not None
            half, lost = to_half(operands[0])
            for kind, count in lost.items():
                derivation.lost[kind] = derivation.lost.get(kind, 0) + count
            return half
        return self._run(node, operands, value)

    def _parameter(self, value: ir.Value, derivation: _Derivation) -> Array:
        name = value.metadata_props[PARAMETER_KEY]
        tensor = self._weights[name]
        derivation.parameters.append(name)
        array = read_tensor(tensor, self._files[tensor.file])
        self._read += tensor.nbytes
        self._progress(min(self._read, self._total), self._total)
        assert value.dtype is not None
        return array.astype(value.dtype.numpy(), copy=False)

    def _run(self, node: ir.Node, operands: list[Array | None], output: ir.Value) -> Array:
        from onnx.reference import ReferenceEvaluator

        proto = ir.to_proto(node)
        proto.ClearField("metadata_props")
        feeds = {name: array for name, array in zip(proto.input, operands, strict=True) if array is not None}
        inputs = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ]
        graph = onnx.helper.make_graph(
            [proto], "derivation", inputs, [onnx.helper.make_empty_tensor_value_info(output.name or "")]
        )
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        single = onnx.helper.make_model(graph, opset_imports=imports, ir_version=self._ir_version)
        try:
            (array,) = ReferenceEvaluator(single).run([output.name], feeds)
        except NotImplementedError as error:
            raise PassError(
                f"can't derive {output.name!r}: no reference for operator {node.op_type!r}"
            ) from error
        return np.asarray(array)


def _write(name: str, array: Array, data: _HashedFile) -> ir.TensorProtocol:
    """Return the tensor of an initializer: small ones inline, others appended to the data file."""
    dtype = ir.DataType.from_numpy(array.dtype)
    if array.nbytes < INLINE_BYTES:
        return ir.tensor(array, dtype=dtype, name=name)
    data.write(bytes(-data.size % ALIGNMENT))
    offset = data.size
    data.write(array.reshape(-1).view(np.uint8).data)
    return ir.ExternalTensor(
        location=DATA_FILE,
        offset=offset,
        length=array.nbytes,
        dtype=dtype,
        shape=ir.Shape(array.shape),
        name=name,
    )


def _replace(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol, derived: set[ir.Value]) -> None:
    """Put an initializer in the place of a derived weight."""
    initializer = ir.Value(name=tensor.name, const_value=tensor, shape=ir.Shape(tensor.shape.numpy()))
    initializer.dtype = tensor.dtype
    for node, index in tuple(value.uses()):
        if node.outputs[0] not in derived:
            node.replace_input_with(index, initializer)
    if value.name == tensor.name:
        value.name = f"{value.name}.parameter"
    graph.register_initializer(initializer)


def _drop_parameters(graph: ir.Graph) -> None:
    """Remove parameter inputs and the nodes that derived weights from them."""
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
        else:
            node.metadata_props.pop(BLOCK_KEY, None)
    kept = [value for value in graph.inputs if PARAMETER_KEY not in value.metadata_props]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    nodes = RecursiveGraphIterator(graph)
    used = {value.name for node in nodes for value in node.inputs if value is not None}
    for name in [name for name in graph.initializers if name not in used]:
        del graph.initializers[name]
