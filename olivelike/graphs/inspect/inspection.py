"""`Inspection`: what was found in an ONNX file, as a value, as JSON and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from olivelike._text import size

if TYPE_CHECKING:
    from olivelike.graphs.inspect.placement import LeftNode

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
class Inspection:
    """What an ONNX file holds."""

    path: str
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    """Opset by domain; the standard one is `ai.onnx`."""
    inputs: tuple[TensorInfo, ...]
    """What a caller feeds, in order; parameters of a weightless graph are not among them."""
    outputs: tuple[TensorInfo, ...]
    nodes: int
    """Nodes of the graph and its subgraphs; bodies of functions are not counted."""
    weight_nodes: int
    """Those of a weightless graph that depend on parameters alone, and end when the graph gets its weights."""
    operators: Mapping[str, Mapping[str, int]]
    """Node counts by domain, then operator, most frequent first."""
    functions: tuple[str, ...]
    """Model-local functions, as `domain::name`."""
    weightless: bool
    """Parameters are graph inputs."""
    parameters: Mapping[str, Parameters]
    """By dtype."""
    data_files: tuple[DataFile, ...]
    left_to_cpu: Mapping[str, tuple[LeftNode, ...]]
    """By target, the nodes that its provider has no kernel for."""

    def to_json(self) -> dict[str, Any]:
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
        yield from _section("data files", map(_data_file, self.data_files))
        folded = f", {self.weight_nodes:,} of them over parameters alone" if self.weight_nodes else ""
        yield f"{self.nodes:,} nodes{folded}"
        for domain, counts in self.operators.items():
            yield f"  {domain}: " + ", ".join(f"{name} {count}" for name, count in counts.items())
        yield from _section("functions", self.functions)
        for target, left in self.left_to_cpu.items():
            yield from _placement(target, left)


def _section(title: str, entries: Any) -> Iterator[str]:
    lines = [f"  {entry}" for entry in entries]
    if lines:
        yield title
        yield from lines


def _data_file(file: DataFile) -> str:
    state = f"{file.location}: {file.tensors:,} tensors, {size(file.expected_bytes)}"
    if file.actual_bytes is None:
        return f"{state}, missing"
    return state if file.complete else f"{state}, but the file has only {size(file.actual_bytes)}"


def _placement(target: str, left: tuple[LeftNode, ...]) -> Iterator[str]:
    if not left:
        yield f"{target}: a kernel for every node"
        return
    verb = "can't run" if target == "cpu" else "would leave to the CPU"
    yield f"{target} {verb} {len(left):,} of the nodes"
    reasons: dict[tuple[str, str], list[str]] = {}
    for node in left:
        reasons.setdefault((node.operator, node.reason), []).append(node.name)
    for (operator, reason), names in reasons.items():
        more = ", …" if len(names) > _SHOWN else ""
        yield f"  {len(names):,} {operator}: {reason} ({', '.join(names[:_SHOWN])}{more})"
