"""`attention_projections`, `packed_qkv` and `packed_kv`: projections before MultiHeadAttention become one.

The combined weights are nodes over the weight inputs, so a new checkpoint needs no new fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB, GraphEditor
from olivelike.graphs.editing.values import (
    attribute,
    dims_of,
    fixed_dims,
    input_of,
    is_used_once,
    producer,
    rank_of,
    required,
    same_dims,
    width_of,
)
from olivelike.graphs.fusion.writing import attributes_of, write

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope

_HEAD_MULTIPLE = 8
"""Packed kernels read heads in vectors of this many values."""


@dataclass(frozen=True)
class _Projection:
    """`source @ weight + bias`, with a (in, out) weight."""

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def attention_projections(scope: Scope) -> None:
    """MultiHeadAttention on three biased projections of one value → Attention with one weight and bias."""
    for node in scope.editor.nodes("MultiHeadAttention", domain=CONTRIB):
        parts = _projections(node, range(3), scope.editor)
        if parts is None or not _is_self_attention(parts):
            continue
        biases = [part.bias for part in parts if part.bias is not None]
        if len(biases) != len(parts):
            continue
        if not scope.may_write("Attention"):
            continue
        _write_attention(node, parts, biases, scope)


def packed_qkv(scope: Scope) -> None:
    """MultiHeadAttention on three projections of one value → one MatMul, queries, keys and values packed."""
    _pack(scope, (0, 1, 2))


def packed_kv(scope: Scope) -> None:
    """MultiHeadAttention on two projections of a context → one MatMul and packed keys and values."""
    _pack(scope, (1, 2))


def _projections(node: ir.Node, indices: Sequence[int], editor: GraphEditor) -> list[_Projection] | None:
    """Return what the operands project; `None` if one is no projection, or there is a bias or a mask beside them."""
    if any(value is not None for value in node.inputs[3:]):
        return None
    parts = [_projection(input_of(node, index), editor) for index in indices]
    found = [part for part in parts if part is not None]
    return found if len(found) == len(parts) else None


def _projection(value: ir.Value | None, editor: GraphEditor) -> _Projection | None:
    """Return what `value` projects, if attention alone uses the result."""
    if value is None or not is_used_once(value):
        return None
    bias = None
    add = producer(value, "Add")
    if add is not None:
        left, right = required(add, 0), required(add, 1)
        value, bias = (left, right) if right in editor.weights else (right, left)
        if bias not in editor.weights or rank_of(bias) != 1 or not is_used_once(value):
            return None
    product = producer(value, "MatMul")
    if product is None:
        return None
    source, weight = required(product, 0), required(product, 1)
    usable = weight in editor.weights and rank_of(weight) == 2 and rank_of(source) == 3
    if not usable or (bias is not None and width_of(bias) != width_of(weight)):
        return None
    return _Projection(source, weight, bias)


def _is_self_attention(parts: Sequence[_Projection]) -> bool:
    """Say whether all parts project one value to one width."""
    first = parts[0]
    return all(part.source is first.source and same_dims(dims_of(part.weight), dims_of(first.weight)) for part in parts)


def _write_attention(node: ir.Node, parts: Sequence[_Projection], biases: Sequence[ir.Value], scope: Scope) -> None:
    editor, result = scope.editor, node.outputs[0]
    depth, width = fixed_dims(parts[0].weight)
    weight = editor.add(
        "Concat", [part.weight for part in parts], (depth, 3 * width),
        before=node, name=f"{result.name}.weight", attributes={"axis": 1},
    )  # fmt: skip
    bias = editor.add(
        "Concat", list(biases), (3 * width,), before=node, name=f"{result.name}.bias", attributes={"axis": 0}
    )
    inputs = [parts[0].source, weight, bias]
    write(scope, "Attention", inputs, result, "projected", attributes=attributes_of(node))


def _pack(scope: Scope, indices: tuple[int, ...]) -> None:
    for node in scope.editor.nodes("MultiHeadAttention", domain=CONTRIB):
        parts = _projections(node, indices, scope.editor)
        if parts is None or not _is_self_attention(parts) or any(part.bias is not None for part in parts):
            continue
        query = producer(input_of(node, 0), "MatMul")
        if len(indices) == 2 and query is not None and query.inputs[0] is parts[0].source:
            continue  # Self-attention: its keys and values pack with its queries or not at all.
        reason = _why_unpacked(node, parts[0].weight, scope)
        if reason is not None:
            scope.refuse(reason)
            continue
        _write_packed(node, parts, scope)


def _why_unpacked(node: ir.Node, weight: ir.Value, scope: Scope) -> str | None:
    kernel = scope.target.kernel("MultiHeadAttention")
    if kernel is None or not kernel.packed:
        return f"{scope.target.name} has no packed MultiHeadAttention"
    if scope.precision_of("MultiHeadAttention") != "fp16":
        return "packed MultiHeadAttention is for fp16 only"
    if "unidirectional" in node.attributes:
        return "packed MultiHeadAttention is never causal"
    width, heads = width_of(weight), attribute(node, "num_heads", 0)
    if width is None or width % heads or (width // heads) % _HEAD_MULTIPLE:
        return f"its head size is no multiple of {_HEAD_MULTIPLE}"
    return None


def _write_packed(node: ir.Node, parts: Sequence[_Projection], scope: Scope) -> None:
    editor, result = scope.editor, node.outputs[0]
    source, weight = parts[0].source, parts[0].weight
    depth, width = fixed_dims(weight)
    count, heads = len(parts), attribute(node, "num_heads", 0)
    size = width // heads
    apart = [
        editor.add(
            "Reshape", [part.weight, editor.shape_constant(depth, heads, 1, size)], (depth, heads, 1, size),
            before=node, name=f"{part.weight.name}.heads",
        )
        for part in parts
    ]  # fmt: skip
    together = editor.add(
        "Concat", apart, (depth, heads, count, size),
        before=node, name=f"{result.name}.interleaved", attributes={"axis": 2},
    )  # fmt: skip
    flat = editor.add(
        "Reshape", [together, editor.shape_constant(depth, count * width)], (depth, count * width),
        before=node, name=f"{result.name}.weight",
    )  # fmt: skip
    leading = dims_of(source)[:2]
    product = editor.add(
        "MatMul", [source, flat], (*leading, count * width), before=node, name=f"{result.name}.projected"
    )
    packed = editor.add(
        "Reshape", [product, editor.shape_constant(0, 0, heads, count, size)], (*leading, heads, count, size),
        before=node, name=f"{result.name}.packed",
    )  # fmt: skip
    inputs = [packed] if count == 3 else [required(node, 0), packed]
    write(
        scope, node.op_type, inputs, result, "fused", attributes=attributes_of(node),
        counted="MultiHeadAttention, packed " + ("QKV" if count == 3 else "KV"),
    )  # fmt: skip
