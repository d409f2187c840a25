"""Meaning of the channels-last convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.functions.body import Body
    from olivelike.graphs.functions.call import Call


def nhwc_conv(op: Body, call: Call) -> list[ir.Value]:
    """NhwcConv: Conv with X (N,H,W,C), W (M,kH,kW,C/group), B (M) → (N,H',W',M)."""
    x, weight = call.required("X", "W")
    bias = call.optional(2)
    operands = [op.Transpose(op.float32(value), perm=[0, 3, 1, 2]) for value in (x, weight)]
    if bias is not None:
        operands.append(op.float32(bias))
    convolved = op.write("Conv", operands, dict(call.node.attributes))[0]
    return [op.CastLike(op.Transpose(convolved, perm=[0, 2, 3, 1]), x)]
