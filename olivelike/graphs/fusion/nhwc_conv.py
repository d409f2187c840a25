"""`nhwc_conv`: convolution in NHWC, between two Transposes that the rule `transposes` moves and cancels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import attribute, dims_of, input_of, rank_of, required
from olivelike.graphs.fusion.nhwc import TO_NCHW, TO_NHWC, to_nhwc_dims
from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope


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
