"""Meaning of the fused activations and additions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.functions.body import Body
    from olivelike.graphs.functions.call import Call


def gelu(op: Body, x: ir.Value) -> ir.Value:
    """x/2 · (1 + erf(x/√2)), the exact form."""
    result: ir.Value = op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0))
    return result


def bias_gelu(op: Body, call: Call) -> list[ir.Value]:
    """BiasGelu: gelu(A + B)."""
    a, b = call.required("A", "B")
    return [op.CastLike(gelu(op, op.Add(op.float32(a), op.float32(b))), a)]


def fast_gelu(op: Body, call: Call) -> list[ir.Value]:
    """FastGelu: the tanh approximation of gelu(X + bias)."""
    (x,) = call.required("X")
    bias = call.optional(1)
    h = op.float32(x) if bias is None else op.Add(op.float32(x), op.float32(bias))
    cubic = op.Add(h, op.Mul(op.Mul(op.Mul(h, h), h), 0.044715))
    inner = op.Tanh(op.Mul(cubic, math.sqrt(2 / math.pi)))
    return [op.CastLike(op.Mul(op.Mul(h, 0.5), op.Add(inner, 1.0)), x)]


def quick_gelu(op: Body, call: Call) -> list[ir.Value]:
    """QuickGelu: X · sigmoid(alpha · X)."""
    (x,) = call.required("X")
    h = op.float32(x)
    return [op.CastLike(op.Mul(h, op.Sigmoid(op.Mul(h, call.number("alpha", 1.702)))), x)]


def bias_split_gelu(op: Body, call: Call) -> list[ir.Value]:
    """BiasSplitGelu: left · gelu(right) of the halves of X + bias; X (N,S,D), bias (D) → (N,S,D/2)."""
    x, bias = call.required("X", "bias")
    halves = op.Reshape(op.Add(op.float32(x), op.float32(bias)), [0, 0, 2, -1])
    left, right = (op.Gather(halves, op.Squeeze([half], [0]), axis=2) for half in (0, 1))
    return [op.CastLike(op.Mul(left, gelu(op, right)), x)]


def bias_add(op: Body, call: Call) -> list[ir.Value]:
    """BiasAdd: X + bias + skip; X and skip (N,S,C), bias (C)."""
    x, bias, skip = call.required("X", "bias", "skip")
    return [op.CastLike(op.Add(op.Add(op.float32(x), op.float32(bias)), op.float32(skip)), x)]
