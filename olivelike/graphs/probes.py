"""Values of a network that may be rounded to 8 bits, and graphs that show them as they run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import onnx_ir as ir

from olivelike.graphs.editing.values import attribute
from olivelike.model.graph import weight_values

PROBE: Final = "calibration/"
"""Begins the names of outputs that show values: least, largest, sum, and a sample of the elements, in float32."""
SAMPLE: Final = 4096
"""Elements of a sample."""
_STRIDE: Final = 2654435761
"""A prime, so that elements are from everywhere: of sizes that it does not divide, none comes twice."""
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def multiplying(graph: ir.Graph, weights: Collection[ir.Value]) -> Iterator[ir.Node]:
    """Yield the operators that multiply an activation by a weight: convolutions and linear layers."""
    for node in graph:
        if node.domain or node.op_type not in {"Conv", "MatMul", "Gemm"} or len(node.inputs) < 2:
            continue
        activation, weight = node.inputs[:2]
        if weight not in weights or activation is None or activation in weights or activation.dtype not in _FLOATS:
            continue
        if node.op_type == "Gemm" and attribute(node, "transA", 0):
            continue
        yield node


def attending(graph: ir.Graph, weights: Collection[ir.Value]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield both products of attention that is spelled out: MatMul, perhaps a mask, Softmax, MatMul."""
    for softmax in graph:
        if softmax.domain or softmax.op_type != "Softmax":
            continue
        before = _through(softmax.inputs[0])
        after = [
            node
            for node, place in _users(softmax.outputs[0])
            if (node.domain, node.op_type, place) == ("", "MatMul", 0)
        ]
        if before is None or before.op_type != "MatMul" or len(after) != 1:
            continue
        if not {*before.inputs, *after[0].inputs} & {*weights, None}:
            yield before, after[0]


def _through(value: ir.Value | None) -> ir.Node | None:
    """Return what made a value, a mask and casts aside."""
    while value is not None and (node := value.producer()) is not None:
        if node.domain or node.op_type not in {"Add", "Cast"}:
            return node
        value = node.inputs[0]
    return None


def _users(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield what takes a value, casts aside, and at which place."""
    for node, place in value.uses():
        if node.op_type == "Cast":
            yield from _users(node.outputs[0])
        else:
            yield node, place


def add_probes(model: ir.Model) -> None:
    """Give a graph an output for each value that an operator of `multiplying` or `attending` takes or gives.

    Shares of attention, which are from 0 to 1, have none.
    """
    graph = model.graph
    weights = weight_values(graph)
    values = dict.fromkeys(
        value
        for node in multiplying(graph, weights)
        for value in (node.inputs[0], node.outputs[0])
        if value is not None
    )
    for scores, mixed in attending(graph, weights):
        values |= dict.fromkeys(value for value in (*scores.inputs, mixed.inputs[1]) if value is not None)
    places = _constant(graph, "places", np.arange(SAMPLE, dtype=np.int64) * _STRIDE)
    flat = _constant(graph, "flat", np.array([-1], np.int64))
    for value in values:
        probe = _Probe(graph, value.producer())
        wide = value if value.dtype == ir.DataType.FLOAT else probe.add("Cast", [value], {"to": ir.DataType.FLOAT})
        row = probe.add("Reshape", [wide, flat])
        at = probe.add("Mod", [places, probe.add("Size", [value])])
        parts = [probe.add(f"Reduce{kind}", [row], {"keepdims": 1}) for kind in ("Min", "Max", "Sum")]
        shown = probe.add("Concat", [*parts, probe.add("Gather", [row, at])], {"axis": 0})
        shown.name, shown.dtype = f"{PROBE}{value.name}", ir.DataType.FLOAT
        shown.shape = ir.Shape([SAMPLE + len(parts)])
        graph.outputs.append(shown)


class _Probe:
    """Nodes right behind the one whose value they take, so that the value goes as soon as it would without them."""

    def __init__(self, graph: ir.Graph, last: ir.Node | None) -> None:
        self._graph, self._last = graph, last

    def add(
        self, op_type: str, inputs: list[ir.Value], attributes: dict[str, int | ir.DataType] | None = None
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes or {})
        if self._last is not None:
            self._graph.insert_after(self._last, node)
        elif len(self._graph):
            self._graph.insert_before(self._graph[0], node)
        self._last = node
        return node.outputs[0]


def _constant(graph: ir.Graph, name: str, array: np.ndarray[tuple[int], np.dtype[np.int64]]) -> ir.Value:
    value = ir.Value(
        name=f"{PROBE}{name}", shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.INT64),
        const_value=ir.tensor(array, name=f"{PROBE}{name}"),
    )  # fmt: skip
    graph.register_initializer(value)
    return value
