"""`nhwc_conv`: convolution between two Transposes.

`transposes`: Transposes behind NHWC operators sink through what has no layout of its own, and cancel.

`cleanup`: shape arithmetic that shapes answer, operators that do nothing, repeated and dead nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    Attributes,
    Dims,
    attribute,
    constant_array,
    dims_of,
    input_of,
    perm_of,
    producer,
    rank_of,
    required,
    same_dim,
    same_dims,
    same_shape,
)
from olivelike.graphs.fusion.writing import TO_NCHW, TO_NHWC, attributes_of, to_nhwc_dims, write, write_nhwc
from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope


def per_channel(value: ir.Value) -> ir.Value | None:
    """Return the (N, C) value that is unsqueezed to (N, C, 1, 1)."""
    unsqueeze = producer(value, "Unsqueeze")
    if unsqueeze is None:
        return None
    axes = constant_array(unsqueeze.inputs[1])
    source = required(unsqueeze, 0)
    spatial = axes is not None and sorted(int(axis) % 4 for axis in axes.reshape(-1)) == [2, 3]
    return source if spatial and rank_of(source) == 2 else None


def nhwc_conv(scope: Scope) -> None:
    """Conv of images with a weight of (M, C, kH, kW) → NhwcConv with one of (M, kH, kW, C)."""
    for node in scope.editor.nodes("Conv"):
        reason = _unusual(node, scope)
        if reason is not None:
            scope.refuse(reason)
        elif scope.may_write("NhwcConv", "NHWC"):
            _write(node, scope)


def _unusual(node: ir.Node, scope: Scope) -> str | None:
    weight, bias = required(node, 1), input_of(node, 2)
    if rank_of(node.outputs[0]) != 4 or rank_of(required(node, 0)) != 4:
        return "NhwcConv takes images"
    if weight not in scope.editor.weights or (bias is not None and bias not in scope.editor.weights):
        return "the convolution's weight is computed from inputs"
    if attribute(node, "group", 1) != 1:
        return "the convolution is grouped"
    return None


def _write(node: ir.Node, scope: Scope) -> None:
    editor = scope.editor
    value, weight = required(node, 0), required(node, 1)
    block = node.metadata_props.get(BLOCK_KEY, "")
    turned = editor.transpose(value, TO_NHWC, before=node, name=f"{value.name}.nhwc")
    kernel = editor.add(
        "Transpose", [weight], to_nhwc_dims(dims_of(weight)), before=node, name=f"{weight.name}.nhwc",
        attributes={"perm": list(TO_NHWC)}, block=block,
    )  # fmt: skip
    inputs = [turned, kernel, input_of(node, 2)]
    write_nhwc(scope, "NhwcConv", inputs, node.outputs[0], attributes=attributes_of(node))


_Plan = tuple[list["ir.Value | None"], Attributes]
"""Inputs and attributes of the same operator in NHWC."""


def transposes(scope: Scope) -> None:
    """Transpose to NCHW, operator without layout → operator in NHWC, Transpose to NCHW; pairs cancel."""
    for node in list(scope.editor.graph):
        if node.graph is None or node.domain not in {"", CONTRIB}:
            continue
        if node.op_type == "Transpose":
            _cancel(node, scope)
        elif node.op_type in _PLANS and len(node.outputs) == 1 and rank_of(node.outputs[0]) == 4:
            plan = _PLANS[node.op_type](node, scope)
            if plan is not None:
                inputs, attributes = plan
                write_nhwc(
                    scope, node.op_type, inputs, node.outputs[0],
                    attributes=attributes, domain=node.domain, counted="Transposes moved",
                )  # fmt: skip


def _cancel(node: ir.Node, scope: Scope) -> None:
    before = producer(node.inputs[0], "Transpose")
    if before is None:
        return
    inner, outer = perm_of(before), perm_of(node)
    perm = tuple(inner[axis] for axis in outer)
    source = required(before, 0)
    identity = perm == tuple(range(len(perm)))
    # An input can't be an output under another name, so such a pair stays.
    taken = source.producer() is None or source.is_graph_output()
    if identity and taken and node.outputs[0].is_graph_output():
        return
    turned = source if identity else scope.editor.transpose(source, perm, before=node)
    scope.editor.replace(node.outputs[0], turned)
    scope.fused["Transposes cancelled"] += 1


def _unary(node: ir.Node, _: Scope) -> _Plan | None:
    source = _nhwc(required(node, 0))
    return None if source is None else ([source], attributes_of(node))


def _binary(node: ir.Node, scope: Scope) -> _Plan | None:
    total = dims_of(node.outputs[0])
    operands = [required(node, 0), required(node, 1)]
    sources = [_nhwc(operand) for operand in operands]
    pairs = list(zip(operands, sources, strict=True))
    if not any(source is not None and same_dims(dims_of(operand), total) for operand, source in pairs):
        return None
    inputs: list[ir.Value | None] = []
    for operand, source in pairs:
        if source is not None or rank_of(operand) == 0:
            inputs.append(operand if source is None else source)
        elif dims_of(operand)[2:] == (1, 1) and rank_of(operand) == 4:
            inputs.append(_channel_last(operand, node, scope))
        else:
            return None
    return inputs, attributes_of(node)


def _channel_last(value: ir.Value, before: ir.Node, scope: Scope) -> ir.Value:
    """Return (N, 1, 1, C) for (N, C, 1, 1), without a Transpose where it comes from (N, C)."""
    editor, vector = scope.editor, per_channel(value)
    if vector is None:
        return editor.transpose(value, TO_NHWC, before=before)
    return editor.add(
        "Unsqueeze", [vector, editor.shape_constant(1, 2)], to_nhwc_dims(dims_of(value)),
        before=before, name=f"{value.name}.nhwc",
    )  # fmt: skip


def _concat(node: ir.Node, _: Scope) -> _Plan | None:
    sources = [None if value is None else _nhwc(value) for value in node.inputs]
    if any(source is None for source in sources):
        return None
    return list(sources), {"axis": TO_NHWC.index(attribute(node, "axis", 0) % 4)}


def _resize(node: ir.Node, scope: Scope) -> _Plan | None:
    # Kernels interpolate NCHW only; repeating pixels works along any axis.
    source = _nhwc(required(node, 0))
    scales = constant_array(input_of(node, 2))
    special = input_of(node, 1) is not None or input_of(node, 3) is not None or "axes" in node.attributes
    if source is None or scales is None or special or attribute(node, "mode", "nearest") != "nearest":
        return None
    turned = scope.editor.constant([float(scales[axis]) for axis in TO_NHWC], np.float32)
    return [source, None, turned], attributes_of(node)


def _pad(node: ir.Node, scope: Scope) -> _Plan | None:
    source = _nhwc(required(node, 0))
    pads = constant_array(input_of(node, 1))
    if source is None or pads is None or pads.size != 8 or input_of(node, 3) is not None:
        return None
    turned = [int(pads[side + axis]) for side in (0, 4) for axis in TO_NHWC]
    return [source, scope.editor.constant(turned, np.int64), input_of(node, 2)], attributes_of(node)


def _nhwc(value: ir.Value) -> ir.Value | None:
    """Return the NHWC value that is transposed to this NCHW one."""
    node = producer(value, "Transpose")
    return required(node, 0) if node is not None and perm_of(node) == TO_NCHW else None


_PLANS: dict[str, Callable[[ir.Node, Scope], _Plan | None]] = {
    **dict.fromkeys(("Cast", "Erf", "Gelu", "Identity", "Neg", "QuickGelu", "Relu", "Sigmoid", "Tanh"), _unary),
    **dict.fromkeys(("Add", "Div", "Mul", "Sub"), _binary),
    "Concat": _concat,
    "Pad": _pad,
    "Resize": _resize,
}


def cleanup(scope: Scope) -> None:
    """Computed shapes of Reshape → constant ones; repeats, idle Reshape, Cast, Expand, Identity → nothing."""
    from onnx_ir.passes import common

    for node in scope.editor.nodes("Reshape"):
        _simplify_reshape(node, scope)
    for node in scope.editor.nodes("Cast", "Expand", "Identity", "Reshape"):
        _drop_if_idle(node, scope)
    before = len(scope.editor.graph)
    common.CommonSubexpressionEliminationPass()(scope.editor.model)
    common.RemoveUnusedNodesPass()(scope.editor.model)
    removed = before - len(scope.editor.graph)
    if removed:
        scope.fused["repeated or dead nodes removed"] += removed


def _simplify_reshape(node: ir.Node, scope: Scope) -> None:
    source, result = required(node, 0), node.outputs[0]
    inner = producer(source, "Reshape")
    if inner is not None and constant_target(dims_of(required(inner, 0)), dims_of(result)) is not None:
        source = required(inner, 0)
    elif constant_array(node.inputs[1]) is not None:
        return
    target = constant_target(dims_of(source), dims_of(result))
    if target is None or source.shape is None or result.shape is None:
        return
    inputs = [source, scope.editor.shape_constant(*target)]
    write(scope, "Reshape", inputs, result, "reshaped", domain="", counted="computed shapes replaced")


def constant_target(source: Dims, result: Dims) -> tuple[int, ...] | None:
    """Return what Reshape takes to turn one shape into another: sizes, 0 to copy a dimension, one -1."""
    target: list[int] = []
    for index, dim in enumerate(result):
        copied = index < len(source) and same_dim(source[index], dim)
        if isinstance(dim, int):
            target.append(dim)
        else:
            target.append(0 if copied else -1)
    fits = result and target.count(-1) <= 1 and all(not isinstance(dim, int) or dim > 0 for dim in result)
    return tuple(target) if fits else None


def _drop_if_idle(node: ir.Node, scope: Scope) -> None:
    source, result = required(node, 0), node.outputs[0]
    idle = {"Cast": source.dtype is not None and attribute(node, "to", 0) == source.dtype, "Identity": True}.get(
        node.op_type, same_shape(source, result)
    )
    # An input can't be an output under another name.
    if not idle or (result.is_graph_output() and (source.producer() is None or source.is_graph_output())):
        return
    scope.editor.replace(result, source)
    scope.fused[f"idle {node.op_type} removed"] += 1
