"""Meaning of the fused activations, additions, convolutions, normalisations and attentions.

`with_functions`: swap fused operators for calls to model-local functions that state their meaning.

For a statement of meaning `Call` is the fused operator's node, and `Body` writes the nodes of its function.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.errors import PassError
from olivelike.graphs.editing.values import Attributes
from olivelike.model.targets import CONTRIB_DOMAIN, TARGETS

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


def rotary_embedding(op: Body, call: Call) -> list[ir.Value]:
    """RotaryEmbedding: pairs of each head's numbers, turned by the angle of their place.

    input (B,S,N·D) or (B,N,S,D), position_ids (1), the first place, cos_cache and sin_cache (at least S places, D/2);
    the result is like the input.
    Pairs are neighbours if `interleaved`, else a head's first half with its second.
    """
    x, first, cos, sin = call.required("input", "position_ids", "cos_cache", "sin_cache")
    heads, rank = call.integer("num_heads", 0), call.rank(0)
    if call.integer("rotary_embedding_dim", 0) or call.rank(1) != 1 or (rank == 3 and not heads):
        raise call.unstated("it has a meaning where all of a head is turned, and places follow each other")
    leading, places = ([0, 0, heads], 1) if rank == 3 else ([0, 0, 0], 2)
    interleaved = call.integer("interleaved", 0)
    axis = 4 if interleaved else 3
    pairs = op.Reshape(op.float32(x), [*leading, -1, 2] if interleaved else [*leading, 2, -1])
    last = op.Add(first, op.dimension(x, places))
    tables = (op.Slice(op.float32(table), first, last, [0]) for table in (cos, sin))
    c, s = (op.Unsqueeze(table, [0, 3 - places, axis]) for table in tables)
    a, b = (op.Slice(pairs, [start], [start + 1], [axis]) for start in (0, 1))
    turned = op.Concat(op.Sub(op.Mul(a, c), op.Mul(b, s)), op.Add(op.Mul(a, s), op.Mul(b, c)), axis=axis)
    return [op.CastLike(op.Reshape(turned, op.Shape(x)), x)]


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


Operand = ir.Value | float | Sequence[int]


class Body:
    """Collects nodes in order; `op.Add(x, 1.0)` writes an Add and returns its output.

    Numbers become float32 constants, sequences of integers int64 vectors. Operators keep to those whose form
    is the same from opset 17 on, so that a body can take the opset of the model that it is written for.
    """

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def __getattr__(self, op_type: str) -> Any:
        def write(*operands: Operand, **attributes: Any) -> ir.Value:
            return self.write(op_type, operands, attributes)[0]

        return write

    def write(
        self, op_type: str, operands: Sequence[Operand], attributes: Attributes, outputs: int = 1
    ) -> Sequence[ir.Value]:
        """Append a node of the standard domain and return its outputs."""
        inputs = [operand if isinstance(operand, ir.Value) else self._constant(operand) for operand in operands]
        return self._append(op_type, inputs, attributes, outputs)

    def float32(self, value: ir.Value) -> ir.Value:
        """Return `value` as float32, in which every statement computes, as the kernels accumulate in it."""
        result: ir.Value = self.Cast(value, to=int(ir.DataType.FLOAT))
        return result

    def dimension(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of one axis, as an int64 vector of one element."""
        result: ir.Value = self.Shape(value, start=axis, end=axis + 1)
        return result

    def _constant(self, number: float | Sequence[int]) -> ir.Value:
        dtype = np.float32 if isinstance(number, float) else np.int64
        return self._append("Constant", [], {"value": ir.Tensor(np.array(number, dtype))}, 1)[0]

    def _append(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: Attributes, outputs: int
    ) -> Sequence[ir.Value]:
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs)
        for index, value in enumerate(node.outputs):
            value.name = f"{op_type}_{len(self.nodes)}_{index}"
        self.nodes.append(node)
        return node.outputs


@dataclass(frozen=True)
class Call:
    """A node's attributes, and the function inputs that stand for its operands."""

    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    """One per operand of the node; `None` where an optional one is absent."""

    def required(self, *names: str) -> tuple[ir.Value, ...]:
        """Return the first operands, which the schema calls `names` and never lets be absent."""
        values = self.inputs[: len(names)]
        present = tuple(value for value in values if value is not None)
        if len(present) != len(names):
            raise self.unstated(f"it needs the inputs {', '.join(names)}")
        return present

    def optional(self, index: int) -> ir.Value | None:
        """Return the operand at `index`, or `None` if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def rank(self, index: int) -> int | None:
        """Return the number of axes of the operand at `index`, or `None` if the graph does not say."""
        value = self.node.inputs[index]
        return None if value is None or value.shape is None else len(value.shape)

    def forbid(self, **positions: int) -> None:
        """Refuse operands that no Stable Diffusion network has: their meaning is not stated here."""
        for name, index in positions.items():
            if self.optional(index) is not None:
                raise self.unstated(f"the input {name} has no stated meaning")

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute, or `default`."""
        return self.node.attributes[name].as_int() if name in self.node.attributes else default

    def number(self, name: str, default: float) -> float:
        """Return a float attribute, or `default`."""
        return self.node.attributes[name].as_float() if name in self.node.attributes else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or `None`."""
        return tuple(self.node.attributes[name].as_ints()) if name in self.node.attributes else None

    def unstated(self, reason: str) -> PassError:
        """Return the error for a form of the operator that has no statement."""
        return PassError(f"{self.node.op_type} {self.node.name!r}: {reason}")


FUNCTION_DOMAIN: Final = "olivelike.graphs.functions"
"""Domain of the functions."""

MEANINGS: Final[Mapping[str, Callable[[Body, Call], list[ir.Value]]]] = {
    "Attention": attention,
    "BiasAdd": bias_add,
    "BiasGelu": bias_gelu,
    "BiasSplitGelu": bias_split_gelu,
    "FastGelu": fast_gelu,
    "GroupNorm": group_norm,
    "MultiHeadAttention": multi_head_attention,
    "NhwcConv": nhwc_conv,
    "QuickGelu": quick_gelu,
    "RotaryEmbedding": rotary_embedding,
    "SkipGroupNorm": skip_group_norm,
    "SkipLayerNormalization": skip_layer_normalization,
}
"""The statement of each operator."""

_OLDEST_OPSET = 17  # LayerNormalization; the other operators of the statements are older
_DTYPES = {ir.DataType.FLOAT: "f", ir.DataType.FLOAT16: "h", ir.DataType.BFLOAT16: "b", ir.DataType.DOUBLE: "d"}


def with_functions(model: ir.Model, *, all: bool = False) -> ir.Model:  # noqa: A002
    """Return a copy of `model` that the CPU provider runs.

    Each fused operator that the CPU has no kernel for becomes a call to a function of domain
    `olivelike.graphs.functions`, in float32 inside, its outputs rounded to the operator's own type. Functions are
    written for the attributes and operands of the node; equal nodes share one. Raises `PassError` when a fused operator
    is used in a form whose meaning is not stated, or the model's opset is below 17.

    Args:
        all: Swap operators that the CPU has kernels for too, so that a kernel can be held against the statement.
    """
    model = model.clone()
    functions: dict[Hashable, ir.Function] = {}
    holders: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for node in [node for holder in holders for node in RecursiveGraphIterator(holder)]:
        if node.domain != CONTRIB_DOMAIN or node.op_type not in MEANINGS or (not all and _runs_on_cpu(node)):
            continue
        key = _form(node)
        if key not in functions:
            number = 1 + sum(function.name.startswith(f"{node.op_type}_") for function in functions.values())
            functions[key] = _state(node, f"{node.op_type}_{number}", model.graph.opset_imports.get("", 1))
        node.domain, node.op_type = FUNCTION_DOMAIN, functions[key].name
        node.attributes.clear()
    for function in functions.values():
        model.functions[function.identifier()] = function
        model.graph.opset_imports[FUNCTION_DOMAIN] = 1
    return model


def _runs_on_cpu(node: ir.Node) -> bool:
    kernel, first = TARGETS["cpu"].kernels.get(node.op_type), node.inputs[0]
    letter = _DTYPES.get(first.dtype) if first is not None and first.dtype is not None else None
    if kernel is None or letter not in kernel.dtypes:
        return False
    packed = node.op_type == "MultiHeadAttention" and any(value is None for value in (*node.inputs, None, None)[1:3])
    return kernel.packed or not packed


def _form(node: ir.Node) -> Hashable:
    """Return all that the function depends on."""
    attributes = tuple(sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items()))
    operands = tuple(None if value is None else Call(node, ()).rank(i) for i, value in enumerate(node.inputs))
    present = tuple(value is not None for value in node.inputs)
    return node.op_type, attributes, operands, present, len(node.outputs)


def _state(node: ir.Node, name: str, opset: int) -> ir.Function:
    if opset < _OLDEST_OPSET:
        raise PassError(
            f"{node.op_type}: its meaning is written in opset {_OLDEST_OPSET} operators, "
            f"and the model is at opset {opset}; convert it to {_OLDEST_OPSET} or newer"
        )
    inputs = [ir.Value(name=f"input_{index}") for index in range(len(node.inputs))]
    operands = tuple(None if value is None else stand_in for value, stand_in in zip(node.inputs, inputs, strict=True))
    body = Body()
    outputs = MEANINGS[node.op_type](body, Call(node, operands))
    graph = ir.Graph(inputs, outputs, nodes=body.nodes, opset_imports={"": opset}, name=name)
    return ir.Function(FUNCTION_DOMAIN, name, graph=graph, attributes=[])
