"""`inspect_model`: everything about an ONNX file but its weights, as a value, as JSON and as lines of text."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike._text import listed, size
from olivelike._untrusted import Json
from olivelike.errors import SourceError
from olivelike.graphs.inspect.borders import read_borders
from olivelike.graphs.inspect.placement import LeftNode, left_to_cpu
from olivelike.graphs.inspect.quantised import KeptWeights, kept_weights
from olivelike.graphs.inspect.skeleton import read_model
from olivelike.model.graph import parameter_inputs, real_inputs, weight_values
from olivelike.model.targets import CPU, TARGETS, WINDOWSML, Target

_SHOWN = 10
"""Names listed in text before `…`."""


@dataclass(frozen=True)
class TensorInfo:
    """A graph input or output."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    """Sizes, names of dynamic dimensions, `None` where nothing is said; `None` for an unknown rank."""

    def __str__(self) -> str:
        dims = "…" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name}: {self.dtype} [{dims}]"


@dataclass(frozen=True)
class DataFile:
    """A file that holds tensors of the model outside it."""

    location: str
    """As the model names it, relative to its folder."""
    tensors: int
    expected_bytes: int
    """Least size that holds all tensors."""
    actual_bytes: int | None
    """`None` if the file is missing."""

    @property
    def complete(self) -> bool:
        """Whether the file is there and long enough."""
        return self.actual_bytes is not None and self.actual_bytes >= self.expected_bytes


@dataclass(frozen=True)
class Parameters:
    """Parameters of one dtype."""

    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class NetworkNodes:
    """The nodes of one network among several in a model."""

    nodes: int
    in_loop: int
    """Nodes that run in each step."""


@dataclass(frozen=True)
class Inspection:
    """Contents of an ONNX file."""

    path: str
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    """Opset by domain; the standard one is `ai.onnx`."""
    inputs: tuple[TensorInfo, ...]
    """Values that a caller feeds, in order; parameters of a weightless graph are not among them."""
    outputs: tuple[TensorInfo, ...]
    nodes: int
    """Nodes of the graph and its subgraphs; bodies of functions are not counted."""
    weight_nodes: int
    """Nodes of a weightless graph that depend on parameters alone, and end when the graph gets its weights."""
    operators: Mapping[str, Mapping[str, int]]
    """Node counts by domain, then operator, most frequent first."""
    functions: tuple[str, ...]
    """Model-local functions, as `domain::name`."""
    weightless: bool
    """Parameters are graph inputs."""
    parameters: Mapping[str, Parameters]
    """Parameters by dtype."""
    data_files: tuple[DataFile, ...]
    left_to_cpu: Mapping[str, tuple[LeftNode, ...]]
    """Nodes that a target's provider has no kernel for, by target."""
    networks: Mapping[str, NetworkNodes] = field(default_factory=dict)
    """Networks of a model that holds several, by component."""
    kept_weights: tuple[KeptWeights, ...] = ()
    """Formats in which layers of a quantised model keep their weights."""

    def to_json(self) -> Json:
        """Return everything as JSON values."""
        report = asdict(self)
        for entry, file in zip(report["data_files"], self.data_files, strict=True):
            entry["complete"] = file.complete
        return report

    def summary_lines(self) -> Iterator[str]:
        """Yield the report as lines of plain text."""
        yield self.path
        opsets = ", ".join(f"{domain} {version}" for domain, version in self.opsets.items())
        yield f"IR version {self.ir_version}, opset {opsets}; by {self.producer or 'an unnamed producer'}"
        yield from _section("inputs", self.inputs)
        yield from _section("outputs", self.outputs)
        kind = " (weightless: parameters are graph inputs)" if self.weightless else ""
        yield f"parameters{kind}"
        for dtype, found in self.parameters.items():
            yield f"  {dtype}: {found.elements:,} in {found.tensors:,} tensors, {size(found.bytes)}"
        yield from _section("weights of layers", map(_kept, self.kept_weights))
        yield from _section("data files", map(_data_file, self.data_files))
        folded = f", {self.weight_nodes:,} of them over parameters alone" if self.weight_nodes else ""
        yield f"{self.nodes:,} nodes{folded}"
        for domain, counts in self.operators.items():
            yield f"  {domain}: " + ", ".join(f"{name} {count}" for name, count in counts.items())
        yield from _section(
            "networks",
            (
                f"{name}: {one.nodes:,} nodes{f', {one.in_loop:,} of them in each step' * bool(one.in_loop)}"
                for name, one in self.networks.items()
            ),
        )
        yield from _section("functions", self.functions)
        for target, left in self.left_to_cpu.items():
            yield from _placement(target, left)


def _section(title: str, entries: Any) -> Iterator[str]:
    lines = [f"  {entry}" for entry in entries]
    if lines:
        yield title
        yield from lines


def _kept(kept: KeptWeights) -> str:
    return f"{kept} ({listed(kept.names, _SHOWN)})" if kept.in_float else str(kept)


def _data_file(file: DataFile) -> str:
    state = f"{file.location}: {file.tensors:,} tensors, {size(file.expected_bytes)}"
    if file.actual_bytes is None:
        return f"{state}, missing"
    return state if file.complete else f"{state}, but the file has only {size(file.actual_bytes)}"


_UNLESS: Final = {WINDOWSML.name: ", unless Windows ML takes its DirectML, as it does for target directml"}
"""Other runners of nodes that a target's own table does not know."""


def _placement(target: str, left: tuple[LeftNode, ...]) -> Iterator[str]:
    if not left:
        yield f"{target}: a kernel for every node"
        return
    nowhere, on_cpu = [node for node in left if not node.on_cpu], [node for node in left if node.on_cpu]
    if nowhere:
        neither = "" if target == CPU.name else ", and neither has the CPU: no session opens"
        yield f"{target} has no kernel for {len(nowhere):,} of the nodes{neither}{_UNLESS.get(target, '')}"
        yield from _reasons(nowhere)
    if on_cpu:
        yield f"{target} would leave to the CPU {len(on_cpu):,} of the nodes"
        yield from _reasons(on_cpu)


def _reasons(left: Iterable[LeftNode]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for node in left:
        reasons.setdefault((node.operator, node.reason), []).append(node.name)
    for (operator, reason), names in reasons.items():
        more = ", …" if len(names) > _SHOWN else ""
        yield f"  {len(names):,} {operator}: {reason} ({', '.join(names[:_SHOWN])}{more})"


# Its warnings quote the file as it is, steering characters among them, straight to the terminal.
logging.getLogger("onnx_ir").addHandler(logging.NullHandler())

_MISFITS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, OverflowError, DecodeError)
"""Errors of `onnx_ir` for messages that are read and make no model; its parts are made as they are asked for."""
_DTYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


def inspect_model(path: str | Path, targets: Iterable[Target] | None = None) -> Inspection:
    """Return what the ONNX file at `path` holds, and what each target would leave to the CPU.

    No weight is read, neither from the file nor from its data files, which may be missing.

    Args:
        path: Any ONNX file, weightless graphs included.
        targets: Those to ask; all by default.

    Raises:
        SourceError: when the file can't be read, or is no ONNX model.
    """
    path = Path(path)
    proto = read_model(path, onnx.ModelProto)
    try:
        return _inspect(path, proto, targets)
    except _MISFITS as error:
        raise SourceError(
            f"{path}: is not an ONNX model: its parts do not fit together ({error}); export it again"
        ) from error


def _inspect(path: Path, proto: onnx.ModelProto, targets: Iterable[Target] | None) -> Inspection:
    model = ir.from_proto(proto)
    graph = model.graph
    stand_ins = parameter_inputs(graph)
    folded = weight_values(graph)
    nodes = list(RecursiveGraphIterator(graph))
    return Inspection(
        path=str(path),
        ir_version=proto.ir_version,
        producer=" ".join(filter(None, (proto.producer_name, proto.producer_version))),
        opsets={entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        # Files of IR version 3 list their initializers among the inputs.
        inputs=tuple(_tensor_info(value) for value in real_inputs(graph) if value.name not in graph.initializers),
        outputs=tuple(_tensor_info(value) for value in graph.outputs),
        nodes=len(nodes),
        weight_nodes=sum(folded.issuperset(node.outputs) for node in nodes),
        operators=_count_operators(nodes),
        functions=tuple(f"{function.domain}::{function.name}" for function in model.functions.values()),
        weightless=bool(stand_ins),
        parameters=_sum_parameters([*graph.initializers.values(), *stand_ins.values()]),
        data_files=tuple(_data_files(graph, path)),
        left_to_cpu={target.name: left_to_cpu(model, target) for target in targets or TARGETS.values()},
        networks=_networks(model, nodes),
        kept_weights=kept_weights(model),
    )


def _networks(model: ir.Model, nodes: Iterable[ir.Node]) -> dict[str, NetworkNodes]:
    places = [((node.name or "").partition("/")[0], node.graph is not model.graph) for node in nodes]
    return {
        name: NetworkNodes(
            sum(component == name for component, _ in places), sum(place == (name, True) for place in places)
        )
        for name in read_borders(model.metadata_props)
    }


def _tensor_info(value: ir.Value) -> TensorInfo:
    shape = None if value.shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return TensorInfo(value.name or "", _dtype_name(value.dtype), shape)


def _dtype_name(dtype: ir.DataType | None) -> str:
    name = "UNDEFINED" if dtype is None else dtype.name
    return _DTYPE_NAMES.get(name, name.lower())


def _count_operators(nodes: Iterable[ir.Node]) -> Mapping[str, Mapping[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for node in nodes:
        counts.setdefault(node.domain or "ai.onnx", Counter())[node.op_type] += 1
    return {
        domain: dict(sorted(counts[domain].items(), key=lambda entry: (-entry[1], entry[0])))
        for domain in sorted(counts)
    }


def _sum_parameters(values: Iterable[ir.Value]) -> Mapping[str, Parameters]:
    sums: dict[str, Parameters] = {}
    for value in values:
        elements = _elements(value)
        width = 0 if value.dtype in {None, ir.DataType.STRING} else (value.dtype or ir.DataType.FLOAT).itemsize
        name = _dtype_name(value.dtype)
        known = sums.get(name, Parameters(0, 0, 0))
        total = known.bytes + math.ceil(elements * width)
        sums[name] = Parameters(known.tensors + 1, known.elements + elements, total)
    return dict(sorted(sums.items()))


def _elements(value: ir.Value) -> int:
    return 0 if value.shape is None else math.prod(dim for dim in value.shape if isinstance(dim, int))


def _data_files(graph: ir.Graph, path: Path) -> Iterator[DataFile]:
    """Yield the data files in the order in which the model names them."""
    tensors: dict[str, list[ir.ExternalTensor]] = {}
    for value in graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            tensors.setdefault(str(value.const_value.location), []).append(value.const_value)
    for location, held in tensors.items():
        expected = max((tensor.offset or 0) + (tensor.length or tensor.nbytes) for tensor in held)
        file = path.parent / location
        yield DataFile(location, len(held), expected, file.stat().st_size if file.is_file() else None)
