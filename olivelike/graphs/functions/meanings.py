"""Meaning of the fused activations, additions, convolutions and normalisations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.functions.body import Body, Call


def _gelu(op: Body, x: ir.Value) -> ir.Value:
    """x/2 · (1 + erf(x/√2)), the exact form."""
    result: ir.Value = op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0))
    return result


def bias_gelu(op: Body, call: Call) -> list[ir.Value]:
    """BiasGelu: gelu(A + B)."""
    a, b = call.required("A", "B")
    return [op.CastLike(_gelu(op, op.Add(op.float32(a), op.float32(b))), a)]


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
    return [op.CastLike(op.Mul(left, _gelu(op, right)), x)]


def bias_add(op: Body, call: Call) -> list[ir.Value]:
    """BiasAdd: X + bias + skip; X and skip (N,S,C), bias (C)."""
    x, bias, skip = call.required("X", "bias", "skip")
    return [op.CastLike(op.Add(op.Add(op.float32(x), op.float32(bias)), op.float32(skip)), x)]


def nhwc_conv(op: Body, call: Call) -> list[ir.Value]:
    """NhwcConv: Conv with X (N,H,W,C), W (M,kH,kW,C/group), B (M) → (N,H',W',M)."""
    x, weight = call.required("X", "W")
    bias = call.optional(2)
    operands = [op.Transpose(op.float32(value), perm=[0, 3, 1, 2]) for value in (x, weight)]
    if bias is not None:
        operands.append(op.float32(bias))
    convolved = op.write("Conv", operands, dict(call.node.attributes))[0]
    return [op.CastLike(op.Transpose(convolved, perm=[0, 2, 3, 1]), x)]


def group_norm(op: Body, call: Call) -> list[ir.Value]:
    """GroupNorm: X (N,H,W,C), or (N,C,H,W) with `channels_last` 0; gamma and beta (C); SiLU if `activation` is 1."""
    x, gamma, beta = call.required("X", "gamma", "beta")
    return [op.CastLike(_normalize_groups(op, call, op.float32(x), gamma, beta), x)]


def skip_group_norm(op: Body, call: Call) -> list[ir.Value]:
    """SkipGroupNorm: GroupNorm of X + skip + bias, and that sum.

    X is (N,H,W,C), bias (C); skip has the shape of X, or (N,1,1,C) or (N,C).
    """
    x, gamma, beta, skip = call.required("X", "gamma", "beta", "skip")
    if not call.integer("channels_last", 1):
        raise call.unstated("it exists in channels-last layout only")
    total = op.Add(op.float32(x), _spread(op, x, op.float32(skip)))
    bias = call.optional(4)
    if bias is not None:
        total = op.Add(total, op.float32(bias))
    normalized = _normalize_groups(op, call, total, gamma, beta)
    return [op.CastLike(value, x) for value in (normalized, total)[: len(call.node.outputs)]]


def skip_layer_normalization(op: Body, call: Call) -> list[ir.Value]:
    """SkipLayerNormalization: LayerNormalization of input + skip + bias over the last axis.

    input is (B,S,H), skip the same or without the batch, gamma, beta and bias (H).
    Outputs: the result; mean and 1/deviation, float32 (B,S,1); the sum.
    """
    x, skip, gamma = call.required("input", "skip", "gamma")
    beta, bias = call.optional(3), call.optional(4)
    total = op.Add(op.float32(x), op.float32(skip))
    if bias is not None:
        total = op.Add(total, op.float32(bias))
    operands = [total, op.float32(gamma), *([] if beta is None else [op.float32(beta)])]
    attributes = {"axis": -1, "epsilon": call.number("epsilon", 1e-12)}
    normalized, mean, deviation = op.write("LayerNormalization", operands, attributes, outputs=3)
    results = [op.CastLike(normalized, x), mean, deviation, op.CastLike(total, x)]
    return results[: len(call.node.outputs)]


def _normalize_groups(op: Body, call: Call, x: ir.Value, gamma: ir.Value, beta: ir.Value) -> ir.Value:
    channels_last = call.integer("channels_last", 1)
    groups = call.integer("groups", 0)
    activation = call.integer("activation", 0)
    if activation not in {0, 1}:
        raise call.unstated(f"activation {activation} is neither 0 (none) nor 1 (SiLU)")
    if channels_last:
        x = op.Transpose(x, perm=[0, 3, 1, 2])
    ones, zeros = (op.Expand(number, [groups]) for number in (1.0, 0.0))
    epsilon = call.number("epsilon", 1e-5)
    grouped = op.InstanceNormalization(op.Reshape(x, [0, groups, -1]), ones, zeros, epsilon=epsilon)
    scale, shift = (op.Unsqueeze(op.float32(value), [1, 2]) for value in (gamma, beta))
    result: ir.Value = op.Add(op.Mul(op.Reshape(grouped, op.Shape(x)), scale), shift)
    if activation:
        result = op.Mul(result, op.Sigmoid(result))
    if channels_last:
        result = op.Transpose(result, perm=[0, 2, 3, 1])
    return result


def _spread(op: Body, x: ir.Value, skip: ir.Value) -> ir.Value:
    """Give `skip` the rank of X: (N, whatever is left, C), where (N,C) and (N,1,1,C) leave 1 and X leaves H·W."""
    rows = op.Concat(op.dimension(x, 0), [-1], op.dimension(x, 3), axis=0)
    flat = op.Reshape(skip, rows)
    broadcast = op.Expand(flat, op.Concat([1], op.Mul(op.dimension(x, 1), op.dimension(x, 2)), [1], axis=0))
    result: ir.Value = op.Reshape(broadcast, op.Shape(x))
    return result
