"""Small operators that spell out one of today's: recognised, and written as that one.

Exporters for older opsets, TorchScript's above all, decompose what ONNX had no operator for. Each function here
knows one meaning in the spellings that they use, and leaves alone what is not surely it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from onnxscript import optimizer

from olivelike.graphs.adopt.onnx_norms import attention, group_norm, layer_norm
from olivelike.graphs.editing.editor import GraphEditor
from olivelike.graphs.editing.values import (
    constant_array,
    constant_float,
    dims_of,
    input_of,
    only_user,
    other_input,
    producer,
    rank_of,
    required,
    same_shape,
    width_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir

_ROUNDING: Final = 5e-4
"""Constants may be rounded to half precision."""


def respell(model: ir.Model) -> None:
    """Write Gelu, Split, LayerNormalization, GroupNormalization and Attention where they are spelled out, in place.

    Args:
        model: weightless, at opset 23, with the shapes of all values; constants are initializers."""
    _fold_known_sizes(GraphEditor(model))
    optimizer.fold_constants(model, onnx_shape_inference=False)
    editor = GraphEditor(model)
    for step in (_drop_idle, _drop_ones, _join_unsqueezes, _gelu, _split_in_halves, layer_norm, group_norm, attention):
        step(editor)


def _fold_known_sizes(editor: GraphEditor) -> None:
    """Sizes taken from a Shape → constants, where the size is fixed and only others are open."""
    import numpy as np

    for node in editor.nodes("Gather", "Slice"):
        shape = producer(node.inputs[0], "Shape")
        bounds = [constant_array(value) for value in node.inputs[1:]]
        if shape is None or shape.attributes or any(bound is None or bound.size != 1 for bound in bounds):
            continue
        dims = dims_of(required(shape, 0))
        first, *rest = (int(bound.reshape(())) for bound in bounds if bound is not None)
        if node.op_type == "Gather":
            sizes = dims[first : first + 1 or None]
        else:
            axis, step = [*rest[1:], 0, 1][:2] if len(rest) != 2 else (rest[1], 1)
            sizes = dims[first : rest[0]] if (axis, step) == (0, 1) else ()
        fixed = [size for size in sizes if isinstance(size, int)]
        if not sizes or len(fixed) != len(sizes):
            continue
        values = fixed if rank_of(node.outputs[0]) else fixed[0]
        editor.replace(node.outputs[0], editor.constant(values, np.int64))


def _drop_idle(editor: GraphEditor) -> None:
    """Reshape, Expand and Cast that change nothing → nothing."""
    for node in editor.nodes("Cast", "Expand", "Reshape"):
        value, result = required(node, 0), node.outputs[0]
        idle = value.dtype == result.dtype and same_shape(value, result)
        if idle and value.producer() is not None and not (result.is_graph_output() and value.is_graph_output()):
            editor.replace(result, value)


def _drop_ones(editor: GraphEditor) -> None:
    """X · 1 and x / 1 → x: scale factors of residual blocks."""
    for node in editor.nodes("Mul", "Div"):
        for index in (0, 1) if node.op_type == "Mul" else (0,):
            value, one = required(node, index), required(node, 1 - index)
            result = node.outputs[0]
            plain = constant_float(one) == 1.0 and same_shape(value, result) and value.producer() is not None
            if plain and not (result.is_graph_output() and value.is_graph_output()):
                editor.replace(result, value)
                break


def _join_unsqueezes(editor: GraphEditor) -> None:
    """Unsqueeze behind Unsqueeze, of ascending axes → one of both axes."""
    for node in editor.nodes("Unsqueeze"):
        inner = producer(node.inputs[0], "Unsqueeze")
        bounds = [constant_array(each.inputs[1]) for each in (inner, node) if each is not None]
        if inner is None or any(axes is None for axes in bounds):
            continue
        axes = [int(axis) for bound in bounds if bound is not None for axis in bound.reshape(-1)]
        if min(axes) < 0 or axes != sorted(axes):
            continue
        result = node.outputs[0]
        joined = editor.add(
            "Unsqueeze", [inner.inputs[0], editor.shape_constant(*axes)], dims_of(result),
            before=node, name=f"{result.name}.joined",
        )  # fmt: skip
        editor.replace(result, joined)


def _gelu(editor: GraphEditor) -> None:
    """½ · x · (1 + erf(x / √2)), multiplied in any order → Gelu."""
    for erf in editor.nodes("Erf"):
        scaled = producer(erf.inputs[0], "Div") or producer(erf.inputs[0], "Mul")
        plus = only_user(erf.outputs[0], "Add")
        if scaled is None or plus is None or constant_float(other_input(plus, erf.outputs[0])) != 1.0:
            continue
        value = required(scaled, 0)
        divisor = constant_float(scaled.inputs[1])
        wanted = math.sqrt(2) if scaled.op_type == "Div" else math.sqrt(0.5)
        if divisor is None or not math.isclose(divisor, wanted, rel_tol=_ROUNDING):
            continue
        product = _gelu_product(plus, value)
        if product is None:
            continue
        result = product.outputs[0]
        editor.replace(result, editor.add("Gelu", [value], dims_of(result), before=product, name=f"{result.name}.gelu"))


def _gelu_product(plus: ir.Node, value: ir.Value) -> ir.Node | None:
    """Return the last multiplication of `plus`, `value` and ½."""
    first = only_user(plus.outputs[0], "Mul")
    if first is None:
        return None
    other = other_input(first, plus.outputs[0])
    half = producer(other, "Mul")
    if half is not None and value in half.inputs and constant_float(other_input(half, value)) == 0.5:
        return first
    second = only_user(first.outputs[0], "Mul")
    if second is None:
        return None
    last = other_input(second, first.outputs[0])
    pairs = ((other, last), (last, other))
    return second if any(x is value and constant_float(c) == 0.5 for x, c in pairs) else None


def _split_in_halves(editor: GraphEditor) -> None:
    """Two Slices that are the halves of the last axis → Split."""
    halves: dict[ir.Value, dict[tuple[int, int], ir.Node]] = {}
    for node in editor.nodes("Slice"):
        bounds = _last_axis_bounds(node)
        if bounds is not None:
            halves.setdefault(required(node, 0), {})[bounds] = node
    for value, nodes in halves.items():
        width = width_of(value) or 1
        left, right = nodes.get((0, width // 2)), nodes.get((width // 2, width))
        if width % 2 or left is None or right is None:
            continue
        dims = dims_of(left.outputs[0])
        first = editor.add(
            "Split", [value], dims, before=next(node for node in editor.graph if node in (left, right)),
            name=f"{left.outputs[0].name}.half", attributes={"axis": -1, "num_outputs": 2},
        )  # fmt: skip
        split = first.producer()
        assert split is not None
        editor.add_outputs(split, editor.value(f"{right.outputs[0].name}.half", dims, value.dtype))
        editor.replace(left.outputs[0], first)
        editor.replace(right.outputs[0], split.outputs[1])


def _last_axis_bounds(node: ir.Node) -> tuple[int, int] | None:
    """Return where a Slice of the last axis begins and ends."""
    width, rank = width_of(required(node, 0)), rank_of(required(node, 0))
    numbers = [constant_float(input_of(node, index)) for index in (1, 2, 3)]
    step = constant_float(node.inputs[4]) if len(node.inputs) > 4 else 1.0
    if width is None or rank is None or any(number is None for number in numbers) or step != 1.0:
        return None
    start, end, axis = (int(number) for number in numbers if number is not None)
    if axis not in {-1, rank - 1}:
        return None
    begin, finish, _ = slice(start, end).indices(width)
    return begin, finish
