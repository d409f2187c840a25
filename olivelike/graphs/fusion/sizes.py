"""Graphs without arithmetic on sizes, for targets where that leaves the provider for the CPU.

What needs a size reads it off a value that has it: a `Shape` by itself stays with the provider. Causal masks, positions
and picked tokens come without whole numbers of 64 bits. Batch, sequence, height and width stay dynamic.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from olivelike.graphs.editing.values import (
    attribute,
    constant_array,
    dims_of,
    input_of,
    only_user,
    producer,
    rank_of,
    required,
    same_dim,
    same_shape,
    width_of,
)
from olivelike.graphs.fusion.attention import is_causal
from olivelike.graphs.fusion.rule import Scope
from olivelike.graphs.fusion.writing import MASKED, attributes_of, write

_INT64: Final = ir.DataType.INT64
_BROADCASTING: Final = frozenset({"Add", "Div", "Mul", "Sub"})


def without_sizes(scope: Scope) -> None:
    """Arithmetic on sizes → sizes of values; arithmetic on int64 → on other types."""
    _causal_masks(scope)
    for node in scope.editor.nodes("Expand"):
        if not _drop_idle_expand(node, scope):
            _take_shape(node, scope)
    for node in scope.editor.nodes("Reshape"):
        _take_shape(node, scope)
    for node in scope.editor.nodes("Gather"):
        _slice_rows(node, scope)
    for node in scope.editor.nodes("GatherND"):
        _pick_by_batch(node, scope)
    for node in scope.editor.nodes("ReduceMax"):
        _reduce_int32(node, scope)


def _drop_idle_expand(node: ir.Node, scope: Scope) -> bool:
    """Let arithmetic broadcast by itself where its other operand has the whole shape."""
    source, result = required(node, 0), node.outputs[0]
    users = [user for user, _ in result.uses()]
    idle = users and all(
        user.op_type in _BROADCASTING and all(value is result or _same(value, result) for value in user.inputs)
        for user in users
    )
    if idle and not result.is_graph_output():
        scope.editor.replace(result, source)
        scope.fused["idle Expand removed"] += 1
    return bool(idle)


def _same(value: ir.Value | None, other: ir.Value) -> bool:
    return value is not None and same_shape(value, other)


def _take_shape(node: ir.Node, scope: Scope) -> None:
    """Take the shape of a value where Reshape or Expand computes that shape."""
    editor, result, before = scope.editor, node.outputs[0], node
    if producer(node.inputs[1], "Concat") is None:
        return
    width = _width_before_linear(result) if node.op_type == "Reshape" else None
    if width is not None:
        shape = editor.shape_constant(-1, width)
    else:
        like = _value_like(node, scope)
        if like is None and node.op_type == "Expand" and (joined := only_user(result, "Concat")) is not None:
            like, before = _first_of(joined, result, scope), joined
        if like is None:
            scope.refuse(f"no value has the shape that {node.op_type} computes")
            return
        if producer(like, "Transpose") is not None:
            # ONNX Runtime's optimizer moves Transposes behind Shape, as a Gather on the CPU, but stops at Reshape.
            same = editor.shape_constant(*[0] * (len(dims_of(like)) - 1), -1)
            like = editor.add("Reshape", [like, same], dims_of(like), before=before, name=f"{like.name}.kept")
        shape = editor.add(
            "Shape", [like], (rank_of(result),), before=before, name=f"{result.name}.sizes", dtype=_INT64
        )
    inputs, counted = [node.inputs[0], shape], "computed shapes replaced"
    write(scope, node.op_type, inputs, result, "like", before=before, domain="", counted=counted)


def _width_before_linear(part: ir.Value) -> int | None:
    """Return the width of what a linear layer takes beside others of known widths: SDXL's sizes beside its text."""
    concat = only_user(part, "Concat")
    linear = None if concat is None else only_user(concat.outputs[0], "Gemm")
    if concat is None or linear is None or rank_of(part) != 2 or attribute(concat, "axis", 0) not in {-1, 1}:
        return None
    whole = dims_of(required(linear, 1))[attribute(linear, "transB", 0)]
    others = [width_of(value) for value in concat.inputs if value is not None and value is not part]
    return whole - sum(width or 0 for width in others) if isinstance(whole, int) and None not in others else None


def _value_like(node: ir.Node, scope: Scope) -> ir.Value | None:
    """Return the last value in front of `node` that has the shape of what it computes."""
    found = None
    for other in scope.editor.graph:
        if other is node:
            break
        found = next((value for value in other.outputs if _same(value, node.outputs[0])), found)
    return found


def _first_of(concat: ir.Node, part: ir.Value, scope: Scope) -> ir.Value | None:
    """Return the first slice of what `part`, one long, is joined with: (N, 1, C) of (N, P, C)."""
    axis = attribute(concat, "axis", 0)
    other = next((value for value in concat.inputs if value is not None and value is not part), None)
    if other is None or dims_of(part)[axis] != 1:
        return None
    editor = scope.editor
    bounds = [editor.shape_constant(number) for number in (0, 1, axis)]
    return editor.add("Slice", [other, *bounds], dims_of(part), before=concat, name=f"{other.name}.first")


def _causal_masks(scope: Scope) -> None:
    """Position of key ≤ position of query, counted in float32, in place of what compares int64."""
    known: dict[ir.Value, ir.Value | None] = {}
    for node in scope.editor.nodes("Attention"):
        mask, query = input_of(node, 3), required(node, 0)
        if mask is None or rank_of(query) != 4 or not same_dim(dims_of(query)[2], dims_of(required(node, 1))[2]):
            continue
        if mask not in known:
            batch, _, sequence, _ = dims_of(query)
            causal = is_causal(mask, batch, sequence, scope.editor.model)
            known[mask] = _causal_bias(query, node, scope) if causal else None
        bias = known[mask]
        if bias is None:
            scope.refuse("an attention mask that is not the causal one is computed on the CPU")
            continue
        node.replace_input_with(3, bias)
        scope.fused["causal mask"] += 1
        if (unused := mask.producer()) is not None:
            scope.editor.prune(unused)


def _causal_bias(query: ir.Value, before: ir.Node, scope: Scope) -> ir.Value:
    """Return what is added to scores (N, heads, S, S) for queries of (N, heads, S, D)."""
    editor, sequence = scope.editor, dims_of(query)[2]
    # Read in front of a Transpose: behind it, ONNX Runtime's optimizer would sort the sizes by a Gather on the CPU.
    split = producer(query, "Transpose")
    source, axis = (required(split, 0), 1) if split is not None else (query, 2)
    length = editor.add(
        "Shape", [source], (1,), before=before, name="sequence", dtype=_INT64,
        attributes={"start": axis, "end": axis + 1},
    )  # fmt: skip
    one = editor.constant([1.0], np.float32)
    ones = editor.add("Expand", [one, length], (sequence,), before=before, name="ones")
    places = editor.add("CumSum", [ones, editor.constant(0, np.int64)], (sequence,), before=before, name="places")
    rows = editor.add("Unsqueeze", [places, editor.shape_constant(1)], (sequence, 1), before=before, name="rows")
    seen = editor.add(
        "LessOrEqual", [places, rows], (sequence, sequence), before=before, name="seen", dtype=ir.DataType.BOOL
    )
    kept, dropped = editor.constant(0.0, np.float32), editor.constant(MASKED, np.float32)
    return editor.add(
        "Where", [seen, kept, dropped], (sequence, sequence), before=before, name="causal", dtype=kept.dtype
    )


def _slice_rows(node: ir.Node, scope: Scope) -> None:
    """Slice rows of a table that constant numbers pick, and not those numbers."""
    table, numbers = required(node, 0), producer(node.inputs[1], "Slice")
    picks = None if numbers is None else constant_array(numbers.inputs[0])
    axes = None if numbers is None else constant_array(input_of(numbers, 3))
    if numbers is None or picks is None or axes is None or (axes < 0).any() or attribute(node, "axis", 0) != 0:
        return
    dims, result = (*picks.shape, *dims_of(table)[1:]), node.outputs[0]
    rows = scope.editor.add("Gather", [table, numbers.inputs[0]], dims, before=node, name=f"{result.name}.rows")
    write(scope, "Slice", [rows, *numbers.inputs[1:]], result, "sliced", domain="", counted="rows sliced")


def _pick_by_batch(node: ir.Node, scope: Scope) -> None:
    """GatherND of one token a picture: by `batch_dims`, and not by counted pictures."""
    pairs = producer(node.inputs[1], "Concat")
    if pairs is None or len(pairs.inputs) != 2 or attribute(node, "batch_dims", 0) != 0:
        return
    pictures, places = (producer(value, "Unsqueeze") for value in pairs.inputs)
    counted = None if pictures is None else producer(pictures.inputs[0], "Range")
    found = None if places is None else producer(places.inputs[0], "ArgMax")
    if counted is None or found is None or rank_of(found.outputs[0]) != 1 or attribute(found, "keepdims", 1):
        return
    same_batch = same_dim(dims_of(counted.outputs[0])[0], dims_of(required(node, 0))[0])
    start, step = (constant_array(counted.inputs[index]) for index in (0, 2))
    if not same_batch or start is None or step is None or (int(start), int(step)) != (0, 1):
        return
    kept = scope.editor.add(
        "ArgMax", [found.inputs[0]], (*dims_of(found.outputs[0]), 1), before=node, name=f"{found.outputs[0].name}.kept",
        attributes={**attributes_of(found), "keepdims": 1}, dtype=_INT64,
    )  # fmt: skip
    write(
        scope, "GatherND", [node.inputs[0], kept], node.outputs[0], "picked",
        attributes={"batch_dims": 1}, domain="", counted="picked by batch",
    )  # fmt: skip


def _reduce_int32(node: ir.Node, scope: Scope) -> None:
    """Any of several booleans: their largest as int32."""
    before, behind = producer(node.inputs[0], "Cast"), only_user(node.outputs[0], "Cast")
    if before is None or behind is None or node.outputs[0].dtype != _INT64:
        return
    editor, truth, result = scope.editor, required(before, 0), behind.outputs[0]
    if not truth.dtype == result.dtype == ir.DataType.BOOL:
        return
    largest = _cast(truth, ir.DataType.INT32, node, scope)
    largest = editor.add(
        "ReduceMax", [largest, *node.inputs[1:]], dims_of(result), before=node, name=f"{result.name}.largest",
        attributes=attributes_of(node),
    )  # fmt: skip
    editor.replace(result, _cast(largest, ir.DataType.BOOL, node, scope))
    scope.fused["any"] += 1


def _cast(value: ir.Value, dtype: ir.DataType, before: ir.Node, scope: Scope) -> ir.Value:
    return scope.editor.add(
        "Cast", [value], dims_of(value), before=before, name=f"{value.name}.{dtype.name.lower()}",
        attributes={"to": int(dtype)}, dtype=dtype,
    )  # fmt: skip
