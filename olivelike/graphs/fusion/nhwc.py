"""Image layouts, NCHW and NHWC; and `nhwc_conv`: convolution between two Transposes that `transposes` cancels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    Dims,
    attribute,
    constant_array,
    dims_of,
    input_of,
    producer,
    rank_of,
    required,
)
from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)


def to_nhwc_dims(dims: Dims) -> Dims:
    """Return the shape in NHWC of an image of this NCHW shape."""
    return tuple(dims[axis] for axis in TO_NHWC)


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
    editor, result = scope.editor, node.outputs[0]
    value, weight = required(node, 0), required(node, 1)
    block = node.metadata_props.get(BLOCK_KEY, "")
    turned = editor.transpose(value, TO_NHWC, before=node, name=f"{value.name}.nhwc")
    dims = dims_of(weight)
    kernel = editor.add(
        "Transpose", [weight], to_nhwc_dims(dims), before=node, name=f"{weight.name}.nhwc",
        attributes={"perm": list(TO_NHWC)}, block=block,
    )  # fmt: skip
    fused = editor.add(
        "NhwcConv", [turned, kernel, input_of(node, 2)], to_nhwc_dims(dims_of(result)),
        before=node, name=f"{result.name}.nhwc", domain=CONTRIB,
        attributes={name: node.attributes[name].value for name in sorted(node.attributes)},
    )  # fmt: skip
    editor.replace(result, editor.transpose(fused, TO_NCHW, before=node, name=f"{result.name}.nchw"))
    scope.fused["NhwcConv"] += 1
