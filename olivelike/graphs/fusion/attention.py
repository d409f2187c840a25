"""`attention`: scaled dot-product attention with its head split and merge becomes one MultiHeadAttention.

Matches `ai.onnx` Attention, either on (B, heads, S, D) between the Reshape and Transpose pairs that split and
merge heads, or on (B, S, heads·D) with `q_num_heads`. Without mask, or with the causal one.

Whether a mask is the causal one is told by its values and not by how it is spelled: it derives from sizes alone, so the
nodes behind it are evaluated for several sizes, and the result is compared with the lower triangle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from olivelike.graphs.editing.values import (
    Dim,
    attribute,
    constant_array,
    dims_of,
    input_of,
    only_user,
    perm_of,
    producer,
    rank_of,
    required,
    same_dims,
    width_of,
)
from olivelike.graphs.fusion.writing import write

if TYPE_CHECKING:
    from olivelike.graphs.fusion.rule import Scope

_SPLIT_HEADS = (0, 2, 1, 3)
_SIZES = ((1, 1), (2, 3), (3, 5), (2, 77))
"""Batch and sequence that the mask is evaluated for."""

_LIMIT = 64
"""A mask behind more nodes than this is not looked at."""

_MASKED = -1e4
"""Float masks add this or less where attention is forbidden."""

_ARITHMETIC = frozenset({
    "Add", "And", "Cast", "Concat", "ConstantOfShape", "Equal", "Expand", "Gather", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Not", "Or", "Range", "Reshape", "Slice", "Squeeze",
    "Sub", "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip


@dataclass(frozen=True)
class _Heads:
    """Attention with queries, keys, values and result as (B, S, heads·D)."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    result: ir.Value
    count: int
    size: int


def attention(scope: Scope) -> None:
    """Attention with its head split and merge → MultiHeadAttention, `unidirectional` for a causal mask."""
    masks: dict[ir.Value, bool] = {}
    for node in scope.editor.nodes("Attention"):
        if not scope.may_write("MultiHeadAttention"):
            continue
        reason = _unusual(node)
        if reason is not None:
            scope.refuse(reason)
            continue
        heads = _heads(node)
        if heads is None:
            scope.refuse("its heads are not split from, and merged into, (batch, sequence, width)")
            continue
        causal = _is_causal(node, heads, scope, masks)
        if causal is None:
            scope.refuse("its mask is not the causal one")
            continue
        _write(node, heads, causal, scope)


def _unusual(node: ir.Node) -> str | None:
    """Return what of the operator has no counterpart in the fused one."""
    if any(input_of(node, index) is not None for index in (4, 5, 6)):
        return "it has past keys and values"
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "its keys, values or scores are used elsewhere"
    if attribute(node, "softcap", 0.0) != 0.0:
        return "its scores are soft-capped"
    return None


def _heads(node: ir.Node) -> _Heads | None:
    query, key, value = (required(node, index) for index in range(3))
    if rank_of(query) == 3:
        return _heads_of_three(node, query, key, value)
    split = [_before_split(operand) for operand in (query, key, value)]
    result = _after_merge(node.outputs[0])
    sources = [part for part in split if part is not None]
    if result is None or len(sources) != len(split):
        return None
    dims = [dims_of(operand) for operand in (query, key, value)]
    count, size = dims[0][1], dims[0][3]
    if not isinstance(count, int) or not isinstance(size, int):
        return None
    if any(part[1] != count or part[3] != size for part in dims):
        return None
    return _Heads(sources[0], sources[1], sources[2], result, count, size)


def _heads_of_three(node: ir.Node, query: ir.Value, key: ir.Value, value: ir.Value) -> _Heads | None:
    count, shared = attribute(node, "q_num_heads", 0), attribute(node, "kv_num_heads", 0)
    widths = [width_of(operand) for operand in (query, key, value)]
    if not count or count != shared or widths[0] is None or len(set(widths)) != 1 or widths[0] % count:
        return None
    return _Heads(query, key, value, node.outputs[0], count, widths[0] // count)


def _before_split(value: ir.Value) -> ir.Value | None:
    """Return the (B, S, heads·D) value that was reshaped and transposed into (B, heads, S, D)."""
    transpose = producer(value, "Transpose")
    if transpose is None or perm_of(transpose) != _SPLIT_HEADS:
        return None
    reshape = producer(transpose.inputs[0], "Reshape")
    if reshape is None:
        return None
    source, split = required(reshape, 0), dims_of(reshape.outputs[0])
    if rank_of(source) != 3 or len(split) != 4 or not same_dims(dims_of(source)[:2], split[:2]):
        return None
    count, size = split[2:]
    fixed = isinstance(count, int) and isinstance(size, int) and width_of(source) == count * size
    return source if fixed else None


def _after_merge(value: ir.Value) -> ir.Value | None:
    """Return the (B, S, heads·D) value that (B, heads, S, D) is transposed and reshaped into."""
    transpose = only_user(value, "Transpose")
    if transpose is None or perm_of(transpose) != _SPLIT_HEADS:
        return None
    apart = transpose.outputs[0]
    reshape = only_user(apart, "Reshape")
    if reshape is None:
        return None
    result, dims = reshape.outputs[0], dims_of(apart)
    count, size = dims[2:]
    merged = isinstance(count, int) and isinstance(size, int) and width_of(result) == count * size
    return result if merged and rank_of(result) == 3 and same_dims(dims_of(result)[:2], dims[:2]) else None


def _is_causal(node: ir.Node, heads: _Heads, scope: Scope, masks: dict[ir.Value, bool]) -> bool | None:
    """Say whether attention is causal; `None` if it is masked in another way."""
    mask = input_of(node, 3)
    batch, sequence = dims_of(heads.query)[:2]
    same_sequence = same_dims(dims_of(heads.query)[:2], dims_of(heads.key)[:2])
    if attribute(node, "is_causal", 0):
        return True if mask is None and same_sequence else None
    if mask is None:
        return False
    if not same_sequence:
        return None
    if mask not in masks:
        masks[mask] = is_causal(mask, batch, sequence, scope.editor.model)
    return masks[mask] or None


def _write(node: ir.Node, heads: _Heads, causal: bool, scope: Scope) -> None:
    attributes: dict[str, int | float] = {"num_heads": heads.count}
    scale = attribute(node, "scale", None)
    if scale is not None and not math.isclose(scale, heads.size**-0.5, rel_tol=1e-6):
        attributes["scale"] = scale
    if causal:
        attributes["unidirectional"] = 1
    inputs = [heads.query, heads.key, heads.value]
    write(scope, "MultiHeadAttention", inputs, heads.result, "attention", attributes=attributes, before=node)


def is_causal(mask: ir.Value, batch: Dim, sequence: Dim, model: ir.Model) -> bool:
    """Say whether `mask` lets each of `sequence` positions see itself and what is before it, and no more.

    Args:
        mask: Boolean (true: may see) or float (added to the scores), broadcasts to (B, heads, S, S).
    """
    constant = constant_array(mask)
    if constant is not None:
        return isinstance(sequence, int) and _is_lower_triangle(constant, sequence)
    nodes = _nodes_behind(mask)
    if nodes is None:
        return False
    evaluator = _evaluator(mask, nodes, model)
    shapes = [node for node in nodes if node.op_type == "Shape"]
    for sizes in _SIZES:
        known = {batch: sizes[0], sequence: sizes[1]} | {dim: dim for dim in (batch, sequence) if isinstance(dim, int)}
        feeds = {node.outputs[0].name: _sizes_of(node, known) for node in shapes}
        if any(feed is None for feed in feeds.values()):
            return False
        (result,) = evaluator.run(None, feeds)
        if not _is_lower_triangle(np.asarray(result), known[sequence]):
            return False
    return True


def _nodes_behind(mask: ir.Value) -> list[ir.Node] | None:
    """Return the nodes that compute the mask from sizes, or `None` if it needs more than sizes."""
    found: dict[ir.Node, None] = {}
    pending = [mask]
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None:
            if value.const_value is None:
                return None
            continue
        if node in found:
            continue
        found[node] = None
        if node.op_type == "Shape":
            continue
        if node.op_type not in _ARITHMETIC or len(found) > _LIMIT:
            return None
        pending.extend(value for value in node.inputs if value is not None)
    return list(found)


def _evaluator(mask: ir.Value, nodes: Sequence[ir.Node], model: ir.Model) -> onnx.reference.ReferenceEvaluator:

    order = {node: index for index, node in enumerate(model.graph)}
    arithmetic = sorted((node for node in nodes if node.op_type != "Shape"), key=order.__getitem__)
    constants = {
        value.name: value.const_value
        for node in arithmetic
        for value in node.inputs
        if value is not None and value.const_value is not None
    }
    graph = onnx.helper.make_graph(
        [ir.to_proto(node) for node in arithmetic],
        "mask",
        [
            onnx.helper.make_tensor_value_info(node.outputs[0].name, onnx.TensorProto.INT64, [None])
            for node in nodes
            if node.op_type == "Shape"
        ],
        [onnx.helper.make_empty_tensor_value_info(mask.name)],
        [onnx.numpy_helper.from_array(tensor.numpy(), name) for name, tensor in constants.items()],
    )
    imports = [onnx.helper.make_opsetid("", model.opset_imports[""])]
    return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version))


def _sizes_of(shape: ir.Node, known: dict[str | int | None, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    dims = dims_of(required(shape, 0))[attribute(shape, "start", 0) : attribute(shape, "end", None)]
    sizes = [known.get(dim, dim) for dim in dims]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return np.asarray(sizes, dtype=np.int64)


def _is_lower_triangle(mask: np.ndarray[Any, Any], size: int) -> bool:
    if mask.ndim < 2 or mask.shape[-2:] != (size, size):
        return False
    seen = np.broadcast_to(np.tril(np.ones((size, size), dtype=bool)), mask.shape)
    if mask.dtype == np.bool_:
        return bool(np.array_equal(mask, seen))
    return bool(np.all(mask[seen] == 0) and np.all(mask[~seen] <= _MASKED))
