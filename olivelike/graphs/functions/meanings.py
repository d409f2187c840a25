"""Meaning of the fused activations, additions, convolutions, normalisations and attentions."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.functions.functions import Body, Call

_LOWEST = -3.4028234663852886e38
_END = sys.maxsize


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

    X is (N,H,W,C), bias (C); skip has the shape of X, or (N,1,1,C) or (N,C)."""
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
    Outputs: the result; mean and 1/deviation, float32 (B,S,1); the sum."""
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


def attention(op: Body, call: Call) -> list[ir.Value]:
    """Attention: q, k and v are the parts of X·W + bias.

    X (B,S,Hin), W (Hin,3H), bias (3H), mask (B,L) or (B,S,L) → (B,S,H); `qkv_hidden_sizes` says where the
    parts differ in width."""
    x, weight = call.required("input", "weights")
    call.forbid(past=4, past_sequence_length=6)
    if call.integer("do_rotary", 0) or len(call.node.outputs) > 1:
        raise call.unstated("rotary embeddings and a present state have no stated meaning")
    projected = op.MatMul(op.float32(x), op.float32(weight))
    bias = call.optional(2)
    if bias is not None:
        projected = op.Add(projected, op.float32(bias))
    sizes = call.integers("qkv_hidden_sizes")
    if sizes is None:
        thirds = op.Reshape(projected, [0, 0, 3, -1])
        q, k, v = (_part(op, thirds, part, axis=2) for part in range(3))
    else:
        ends = (0, sizes[0], sizes[0] + sizes[1], sum(sizes))
        q, k, v = (op.Slice(projected, [ends[i]], [ends[i + 1]], [2]) for i in range(3))
    return [op.CastLike(_attend(op, call, q, k, v, mask=3, attention_bias=5), x)]


def multi_head_attention(op: Body, call: Call) -> list[ir.Value]:
    """MultiHeadAttention in its three forms.

    query (B,S,H), key (B,L,H) and value (B,L,Hv); or query and packed KV (B,L,N,2,D); or packed QKV (B,S,N,3,D);
    bias (H + H + Hv), mask (B,L) or (B,S,L), attention_bias (1 or B, 1 or N, S, L) → (B,S,Hv)."""
    (query,) = call.required("query")
    call.forbid(past_key=6, past_value=7, past_sequence_length=8, cache_indirection=9)
    if len(call.node.outputs) > 1:
        raise call.unstated("a present state has no stated meaning")
    key, value = call.optional(1), call.optional(2)
    q = op.float32(query)
    if key is None:
        q, k, v = (op.Reshape(_part(op, q, part, axis=3), [0, 0, -1]) for part in range(3))
    elif value is None:
        packed = op.float32(key)
        k, v = (op.Reshape(_part(op, packed, part, axis=3), [0, 0, -1]) for part in range(2))
    elif call.rank(1) == 4:
        raise call.unstated("key of shape (B,N,L,D) has no stated meaning")
    else:
        k, v = op.float32(key), op.float32(value)
    bias = call.optional(3)
    if bias is not None:
        width = op.dimension(q, 2)
        starts = ([0], width, op.Mul(width, [2]))
        ends = (width, starts[2], [_END])
        flat = op.float32(bias)
        parts = (op.Slice(flat, start, end, [0]) for start, end in zip(starts, ends, strict=True))
        q, k, v = (op.Add(projected, part) for projected, part in zip((q, k, v), parts, strict=True))
    return [op.CastLike(_attend(op, call, q, k, v, mask=4, attention_bias=5), query)]


def _attend(op: Body, call: Call, q: ir.Value, k: ir.Value, v: ir.Value, mask: int, attention_bias: int) -> ir.Value:
    """softmax(scale · q·kᵀ + masks) · v for each head; q (B,S,H), k (B,L,H), v (B,L,Hv), float32 → (B,S,Hv)."""
    heads = call.integer("num_heads", 0)
    q, k, v = (op.Reshape(value, [0, 0, heads, -1]) for value in (q, k, v))
    scale = call.number("scale", 0.0)
    q = op.Mul(q, scale) if scale else op.Div(q, op.Sqrt(op.float32(op.dimension(q, 3))))
    scores = op.MatMul(op.Transpose(q, perm=[0, 2, 1, 3]), op.Transpose(k, perm=[0, 2, 3, 1]))
    scores = _mask_padding(op, call, scores, mask)
    bias = call.optional(attention_bias)
    if bias is not None:
        scores = op.Add(scores, op.float32(bias))
    if call.integer("unidirectional", 0):
        scores = _mask_future(op, scores)
    mixed = op.MatMul(op.Softmax(scores, axis=-1), op.Transpose(v, perm=[0, 2, 1, 3]))
    result: ir.Value = op.Reshape(op.Transpose(mixed, perm=[0, 2, 1, 3]), [0, 0, -1])
    return result


def _mask_padding(op: Body, call: Call, scores: ir.Value, index: int) -> ir.Value:
    """Add `mask_filter_value` where the integer mask is 0."""
    mask = call.optional(index)
    if mask is None:
        return scores
    rank = call.rank(index)
    axes = {2: [1, 2], 3: [1]}.get(rank or 0)
    if axes is None:
        shape = "of unknown rank" if rank is None else f"with {rank} axes"
        raise call.unstated(f"a mask {shape} has no stated meaning; (B,L) and (B,S,L) have")
    hidden = op.Sub(1.0, op.float32(op.Unsqueeze(mask, axes)))
    result: ir.Value = op.Add(scores, op.Mul(hidden, call.number("mask_filter_value", -10000.0)))
    return result


def _mask_future(op: Body, scores: ir.Value) -> ir.Value:
    """Hide each key behind its query."""
    visible = op.Trilu(op.Expand(1.0, op.Shape(scores, start=2)), upper=0)
    result: ir.Value = op.Where(op.Greater(visible, 0.5), scores, _LOWEST)
    return result


def _part(op: Body, packed: ir.Value, index: int, axis: int) -> ir.Value:
    result: ir.Value = op.Gather(packed, op.Squeeze([index], [0]), axis=axis)
    return result
