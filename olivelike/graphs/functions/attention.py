"""Meaning of the fused attention operators."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.functions.body import Body, Call

_LOWEST = -3.4028234663852886e38
_END = sys.maxsize


def attention(op: Body, call: Call) -> list[ir.Value]:
    """Attention: q, k and v are the parts of X·W + bias.

    X (B,S,Hin), W (Hin,3H), bias (3H), mask (B,L) or (B,S,L) → (B,S,H); `qkv_hidden_sizes` says where the
    parts differ in width.
    """
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
    bias (H + H + Hv), mask (B,L) or (B,S,L), attention_bias (1 or B, 1 or N, S, L) → (B,S,Hv).
    """
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


def _attend(
    op: Body, call: Call, q: ir.Value, k: ir.Value, v: ir.Value, mask: int, attention_bias: int
) -> ir.Value:
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
