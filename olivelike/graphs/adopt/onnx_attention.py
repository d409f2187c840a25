"""Attention that is spelled out: MatMul, Softmax, MatMul on (B, heads, S, D)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.dimensions import same_dim
from olivelike.graphs.editing.values import (
    attribute,
    constant_float,
    dims_of,
    only_user,
    perm_of,
    producer,
    rank_of,
    required,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.editing.editor import GraphEditor

_RANK = 4


def attention(editor: GraphEditor) -> None:
    """Softmax(scale · Q · Kᵀ + mask) · V, with the scale on any of the factors → Attention."""
    for softmax in editor.nodes("Softmax"):
        last = only_user(softmax.outputs[0], "MatMul")
        rank = rank_of(softmax.outputs[0])
        if last is None or rank != _RANK or attribute(softmax, "axis", -1) not in {-1, rank - 1}:
            continue
        value = required(last, 1)
        if last.inputs[0] is not softmax.outputs[0] or rank_of(value) != _RANK:
            continue
        scores, mask = _unmasked(required(softmax, 0))
        scores, scale = _unscaled(scores)
        product = producer(scores, "MatMul")
        if product is None or (mask is not None and rank_of(mask) not in {2, 3, 4}):
            continue
        query, query_scale = _unscaled(required(product, 0))
        turned, key_scale = _unscaled(required(product, 1))
        if not _belong_together(query, turned, value):
            continue
        result = last.outputs[0]
        whole = editor.add(
            "Attention", [query, _key(editor, turned, last), value, *([mask] if mask is not None else [])],
            dims_of(result), before=last, name=f"{result.name}.attention",
            attributes={"scale": scale * query_scale * key_scale},
        )  # fmt: skip
        editor.replace(result, whole)


def _unmasked(scores: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Return the scores without the mask that is added to them, and the mask."""
    total = producer(scores, "Add")
    if total is None:
        return scores, None
    for index in (0, 1):
        value, mask = required(total, index), required(total, 1 - index)
        if producer(_unscaled(value)[0], "MatMul") is not None and dims_of(value) == dims_of(scores):
            return value, mask
    return scores, None


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """Return a value without a constant factor, and the factor."""
    node = producer(value, "Mul") or producer(value, "Div")
    if node is None:
        return value, 1.0
    for index in (0, 1) if node.op_type == "Mul" else (0,):
        factor = constant_float(node.inputs[1 - index])
        if factor is not None and dims_of(required(node, index)) == dims_of(value):
            return required(node, index), factor if node.op_type == "Mul" else 1.0 / factor
    return value, 1.0


def _belong_together(query: ir.Value, turned: ir.Value, value: ir.Value) -> bool:
    """Say whether (B, heads, S, D), (B, heads, D, L) and (B, heads, L, D) have B, heads and D in common."""
    dims = [dims_of(operand) for operand in (query, turned, value)]
    if any(len(shape) != _RANK for shape in dims):
        return False
    batch_and_heads = all(same_dim(shape[axis], dims[0][axis]) for shape in dims[1:] for axis in (0, 1))
    return batch_and_heads and same_dim(dims[0][3], dims[1][2]) and same_dim(dims[1][3], dims[2][2])


def _key(editor: GraphEditor, turned: ir.Value, before: ir.Node) -> ir.Value:
    """Return the key as (B, heads, L, D)."""
    transpose = producer(turned, "Transpose")
    if transpose is None:
        return editor.transpose(turned, (0, 1, 3, 2), before=before)
    perm = perm_of(transpose)
    straight = (perm[0], perm[1], perm[3], perm[2])
    source = required(transpose, 0)
    return source if straight == (0, 1, 2, 3) else editor.transpose(source, straight, before=before)
