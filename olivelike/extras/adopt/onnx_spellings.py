"""Small operators that spell out one of today's: recognised, and written as that one.

Exporters for older opsets, TorchScript's above all, decompose what ONNX had no operator for. Each function here
knows one meaning in the spellings that they use, and leaves alone what is not surely it.

Norms and attention that are spelled out in small operators.

LayerNormalization and GroupNormalization; MatMul, Softmax, MatMul on (B, heads, S, D).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from onnxscript import optimizer

from olivelike.graphs.editing.editor import GraphEditor
from olivelike.graphs.editing.values import (
    Dims,
    attribute,
    constant_array,
    constant_float,
    dims_of,
    input_of,
    node_of,
    only_user,
    other_input,
    perm_of,
    producer,
    rank_of,
    required,
    same_dim,
    same_shape,
    width_of,
)
from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

_ROUNDING: Final = 5e-4
"""Constants may be rounded to half precision."""


def respell(model: ir.Model) -> None:
    """Write Gelu, Split, LayerNormalization, GroupNormalization and Attention where they are spelled out, in place.

    `model` is weightless, at opset 23, with the shapes of all values; constants are initializers.
    """
    _fold_known_sizes(GraphEditor(model))
    optimizer.fold_constants(model, onnx_shape_inference=False)
    editor = GraphEditor(model)
    for step in (_drop_idle, _drop_ones, _join_unsqueezes, _gelu, _split_in_halves, layer_norm, group_norm, attention):
        step(editor)


def _fold_known_sizes(editor: GraphEditor) -> None:
    """Sizes taken from a Shape → constants, where the size is fixed and only others are open."""
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
        split = node_of(first)
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


_RANK = 4


def layer_norm(editor: GraphEditor) -> None:
    """(x - mean) / √(variance + ε) · scale + bias over the last axis → LayerNormalization."""
    for quotient in editor.nodes("Div"):
        found = _normalised(quotient)
        if found is None:
            continue
        value, epsilon = found
        width = width_of(value)
        affine = _affine(quotient.outputs[0], [(width,)])
        if affine is None or width is None:
            continue
        scale, bias, last = affine
        result = last.outputs[0]
        normal = editor.add(
            "LayerNormalization", [value, scale, bias], dims_of(result), before=last,
            name=f"{result.name}.normal", attributes={"axis": -1, "epsilon": epsilon},
        )  # fmt: skip
        editor.replace(result, normal)


def group_norm(editor: GraphEditor) -> None:
    """InstanceNormalization of groups of channels, then a scale and a bias per channel → GroupNormalization."""
    for node in editor.nodes("InstanceNormalization"):
        into, back = producer(node.inputs[0], "Reshape"), only_user(node.outputs[0], "Reshape")
        if into is None or back is None or not _is_plain(node):
            continue
        value, grouped = required(into, 0), dims_of(into.outputs[0])
        dims = dims_of(value)
        if len(dims) < 3 or len(grouped) != 3 or not same_dim(dims[0], grouped[0]):
            continue
        channels, groups = dims[1], grouped[1]
        if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
            continue
        if not same_shape(value, back.outputs[0]):
            continue
        column = (channels, *[1] * (len(dims) - 2))
        affine = _affine(back.outputs[0], [column, (1, *column)])
        if affine is None or not all(weight in editor.weights for weight in affine[:2]):
            continue
        scale, bias, last = affine
        result = last.outputs[0]
        block = last.metadata_props.get(BLOCK_KEY, "")
        vectors = [_vector(editor, weight, channels, block) for weight in (scale, bias)]
        normal = editor.add(
            "GroupNormalization", [value, *vectors], dims, before=last, name=f"{result.name}.normal",
            attributes={"epsilon": attribute(node, "epsilon", 1e-5), "num_groups": groups},
        )  # fmt: skip
        editor.replace(result, normal)


def _normalised(quotient: ir.Node) -> tuple[ir.Value, float] | None:
    """Return x and ε of (x - mean(x)) / √(mean((x - mean(x))²) + ε)."""
    difference, root = producer(quotient.inputs[0], "Sub"), producer(quotient.inputs[1], "Sqrt")
    total = producer(root.inputs[0], "Add") if root is not None else None
    if difference is None or total is None:
        return None
    value, mean = required(difference, 0), producer(difference.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] is not value or not _is_over_last_axis(mean):
        return None
    for index in (0, 1):
        variance, epsilon = (producer(total.inputs[index], "ReduceMean"), constant_float(total.inputs[1 - index]))
        if variance is None or epsilon is None or not _is_over_last_axis(variance):
            continue
        if _is_square(required(variance, 0), difference.outputs[0]):
            return value, epsilon
    return None


def _is_square(value: ir.Value, root: ir.Value) -> bool:
    power, product = producer(value, "Pow"), producer(value, "Mul")
    if power is not None:
        return power.inputs[0] is root and constant_float(power.inputs[1]) == 2.0
    return product is not None and all(operand is root for operand in product.inputs)


def _is_over_last_axis(mean: ir.Node) -> bool:
    axes = constant_array(input_of(mean, 1))
    rank = rank_of(required(mean, 0))
    return axes is not None and axes.tolist() in ([-1], [rank and rank - 1]) and attribute(mean, "keepdims", 1) == 1


def _is_plain(node: ir.Node) -> bool:
    """Say whether an InstanceNormalization has scale 1 and bias 0."""
    scale, bias = constant_array(node.inputs[1]), constant_array(node.inputs[2])
    return scale is not None and bias is not None and bool(np.all(scale == 1) and np.all(bias == 0))


def _affine(value: ir.Value, allowed: list[Dims]) -> tuple[ir.Value, ir.Value, ir.Node] | None:
    """Return scale, bias and the last node of `value · scale + bias`, both of one of the allowed shapes."""
    product = only_user(value, "Mul")
    total = only_user(product.outputs[0], "Add") if product is not None else None
    if product is None or total is None:
        return None
    scale, bias = other_input(product, value), other_input(total, product.outputs[0])
    return (scale, bias, total) if dims_of(scale) in allowed and dims_of(bias) in allowed else None


def _vector(editor: GraphEditor, weight: ir.Value, size: int, block: str) -> ir.Value:
    """Return a weight per channel as a vector."""
    # In front of all others: a rule may want the vector where an operand of the norm is computed.
    return editor.add(
        "Reshape", [weight, editor.shape_constant(size)], (size,), before=editor.graph[0],
        name=f"{weight.name}.vector", block=block,
    )  # fmt: skip


def attention(editor: GraphEditor) -> None:
    """Softmax(scale · Q · Kᵀ + mask) · V, with the scale on any of the factors → Attention."""
    for softmax in editor.nodes("Softmax"):
        last = only_user(softmax.outputs[0], "MatMul")
        rank = rank_of(softmax.outputs[0])
        if last is None or rank != _RANK or attribute(softmax, "axis", -1) not in {-1, rank - 1}:
            continue
        value = required(last, 1)
        if last.inputs[0] is not softmax.outputs[0] or rank_of(value) != _RANK:
            continue
        scores, mask = _unmasked(required(softmax, 0))
        scores, scale = _unscaled(scores)
        product = producer(scores, "MatMul")
        if product is None or (mask is not None and rank_of(mask) not in {2, 3, 4}):
            continue
        query, query_scale = _unscaled(required(product, 0))
        turned, key_scale = _unscaled(required(product, 1))
        if not _belong_together(query, turned, value):
            continue
        result = last.outputs[0]
        whole = editor.add(
            "Attention", [query, _key(editor, turned, last), value, *([mask] if mask is not None else [])],
            dims_of(result), before=last, name=f"{result.name}.attention",
            attributes={"scale": scale * query_scale * key_scale},
        )  # fmt: skip
        editor.replace(result, whole)


def _unmasked(scores: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Return the scores without the mask that is added to them, and the mask."""
    total = producer(scores, "Add")
    if total is None:
        return scores, None
    for index in (0, 1):
        value, mask = required(total, index), required(total, 1 - index)
        if producer(_unscaled(value)[0], "MatMul") is not None and dims_of(value) == dims_of(scores):
            return value, mask
    return scores, None


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """Return a value without a constant factor, and the factor."""
    node = producer(value, "Mul") or producer(value, "Div")
    if node is None:
        return value, 1.0
    for index in (0, 1) if node.op_type == "Mul" else (0,):
        factor = constant_float(node.inputs[1 - index])
        if factor is not None and dims_of(required(node, index)) == dims_of(value):
            return required(node, index), factor if node.op_type == "Mul" else 1.0 / factor
    return value, 1.0


def _belong_together(query: ir.Value, turned: ir.Value, value: ir.Value) -> bool:
    """Say whether (B, heads, S, D), (B, heads, D, L) and (B, heads, L, D) have B, heads and D in common."""
    dims = [dims_of(operand) for operand in (query, turned, value)]
    if any(len(shape) != _RANK for shape in dims):
        return False
    batch_and_heads = all(same_dim(shape[axis], dims[0][axis]) for shape in dims[1:] for axis in (0, 1))
    return batch_and_heads and same_dim(dims[0][3], dims[1][2]) and same_dim(dims[1][3], dims[2][2])


def _key(editor: GraphEditor, turned: ir.Value, before: ir.Node) -> ir.Value:
    """Return the key as (B, heads, L, D)."""
    transpose = producer(turned, "Transpose")
    if transpose is None:
        return editor.transpose(turned, (0, 1, 3, 2), before=before)
    perm = perm_of(transpose)
    straight = (perm[0], perm[1], perm[3], perm[2])
    source = required(transpose, 0)
    return source if straight == (0, 1, 2, 3) else editor.transpose(source, straight, before=before)
