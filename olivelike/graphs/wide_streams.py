"""Streams of transformers whose values leave float16's range: what of a graph is computed in float32 for them.

A stream is what each block adds to. Kept in float32 are its sums, norms that read it, and what leads to a sum from the
last linear layer: bias, norm, gate. That layer itself is in half precision, on a 256th of what it takes, and what it
gives is multiplied by 256 in float32. Both are exact, so it may give up to 1.6e7, and of its smallest inputs half
precision drops what is below 8e-6. Where it takes a product, as in SwiGLU, one factor is divided, and so the product
may leave the range as well.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from olivelike.graphs.editing.values import dims_of, same_dims
from olivelike.model.graph import BLOCK_KEY

SHARE: Final = 2.0**-8
"""Part of its input on which a layer runs."""
_NORMS: Final = frozenset({"LayerNormalization", "RMSNormalization"})
_PASSED: Final = frozenset(
    {"Add", "Clip", "Concat", "Expand", "Gather", "Identity", "Mul", "Neg", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Sub", "Transpose", "Unsqueeze", "Where"}
)
"""Operators whose results are as wide as what they take."""


@dataclass(frozen=True)
class WideStreams:
    """What was found of a graph's streams."""

    nodes: frozenset[ir.Node] = frozenset()
    """They stay in float32."""
    values: frozenset[ir.Value] = frozenset()
    """Those that half precision may not hold: the streams themselves."""
    layers: int = 0
    """Linear layers that were made to run on a part of their input."""


def widen_streams(graph: ir.Graph, modules: Sequence[str], weights: Collection[ir.Value]) -> WideStreams:
    """Find the streams of a graph in float32, and divide what their last linear layers take.

    Args:
        graph: Changed in place.
        modules: Those whose own sums are of a stream: paths with wildcards for one name each.
        weights: Values that are weights, or derived of them alone.
    """
    sums = {node for node in graph if _is_sum(node, modules)}
    if not sums:
        return WideStreams()
    after, values = _after(sums)
    before, layers = _before(graph, sums, weights)
    for layer in layers:
        before.add(_on_a_part(graph, layer))
    return WideStreams(frozenset(sums | after | before), frozenset(values), len(layers))


def _is_sum(node: ir.Node, modules: Sequence[str]) -> bool:
    path = node.metadata_props.get(BLOCK_KEY, "")
    return (
        node.op_type == "Add"
        and node.outputs[0].dtype == ir.DataType.FLOAT
        and any(fnmatch.fnmatchcase(path, one) and path.count(".") == one.count(".") for one in modules)
        # Shifts of an adaptive norm are of other shapes.
        and all(value is not None and value.shape == node.outputs[0].shape for value in node.inputs)
    )


def _after(sums: set[ir.Node]) -> tuple[set[ir.Node], set[ir.Value]]:
    """Return what reads a stream up to its norms, and the values on the way."""
    found: set[ir.Node] = set()
    values: set[ir.Value] = set()
    pending = [node.outputs[0] for node in sums]
    while pending:
        value = pending.pop()
        if value in values or value.dtype != ir.DataType.FLOAT:
            continue
        values.add(value)
        for user, _ in value.uses():
            if user.op_type in _NORMS:
                found.add(user)
            elif user.op_type in _PASSED:
                found.add(user)
                pending.extend(user.outputs)
    return found, values


def _before(graph: ir.Graph, sums: set[ir.Node], weights: Collection[ir.Value]) -> tuple[set[ir.Node], list[ir.Node]]:
    """Return what leads to the sums alone, and the linear layers where it begins."""
    found: set[ir.Node] = set()
    layers: list[ir.Node] = []
    for node in reversed(graph):
        value = node.outputs[0]
        users = {user for user, _ in value.uses()}
        if node in sums or not users or not users <= found | sums:
            continue
        if not all(same_dims(dims_of(value)[:-1], dims_of(user.outputs[0])[:-1]) for user in users):
            continue
        if node.op_type == "MatMul" and node.inputs[1] in weights:
            layers.append(node)
        elif node.op_type in _NORMS | _PASSED:
            found.add(node)
    return found, layers


def _on_a_part(graph: ir.Graph, layer: ir.Node) -> ir.Node:
    """Run a layer on a part of its input; return the node that multiplies its result."""
    taken, given = layer.inputs[0], layer.outputs[0]
    assert taken is not None
    part = _part(graph, taken, layer)
    if part is not taken:
        layer.replace_input_with(0, part)
    product = _times(graph, given, 1 / SHARE, layer)
    graph.insert_after(layer, product)
    for user, index in list(given.uses()):
        if user is not product:
            user.replace_input_with(index, product.outputs[0])
    return product


def _part(graph: ir.Graph, value: ir.Value, user: ir.Node) -> ir.Value:
    """Return a value divided, where it can be a factor of it: then it changes itself."""
    source = value.producer()
    if source is not None and len(value.uses()) == 1 and not value.is_graph_output():
        if source.op_type == "Mul" and all(one is not None and one.shape == value.shape for one in source.inputs):
            factor = source.inputs[1]
            assert factor is not None
            source.replace_input_with(1, _part(graph, factor, source))
            return value
        if source.op_type == "Concat":
            for index, one in enumerate(source.inputs):
                assert one is not None
                source.replace_input_with(index, _part(graph, one, source))
            return value
    product = _times(graph, value, SHARE, user)
    graph.insert_before(user, product)
    return product.outputs[0]


def _times(graph: ir.Graph, value: ir.Value, factor: float, beside: ir.Node) -> ir.Node:
    product = ir.node("Mul", [value, _number(graph, factor)], name=f"{value.name}/times_{factor:g}")
    product.metadata_props.update(beside.metadata_props)
    result = product.outputs[0]
    result.name, result.shape, result.dtype = f"{value.name}.times_{factor:g}", value.shape, ir.DataType.FLOAT
    return product


def _number(graph: ir.Graph, number: float) -> ir.Value:
    name = f"stream.{number:g}"
    if name not in graph.initializers:
        value = ir.Value(name=name, const_value=ir.tensor(np.asarray(number, np.float32), name=name))
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
        graph.register_initializer(value)
    return graph.initializers[name]
