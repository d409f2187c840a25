"""Lowering: operators that the target can't read become simpler ones, and the model's versions come down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.values import (
    attribute,
    dims_of,
    input_of,
    node_of,
    perm_of,
    producer,
    rank_of,
    required,
    same_dims,
)
from olivelike.graphs.fusion.rule import Scope
from olivelike.graphs.fusion.sizes import without_sizes
from olivelike.graphs.fusion.writing import MASKED, write
from olivelike.model.graph import OPERATOR_KEY

LOWEST_OPSET = 20
"""From here to 23 operators of one signature differ in the types they take, nothing else."""

_IR_10, _IR_11 = 10, 11
_OPSET_OF_IR_11 = 23
"""The first opset of a release with IR version 11; IR version 10 is the first with metadata on nodes."""


def lower(scope: Scope) -> None:
    """Attention, norms, rotary embeddings and Gemm that are not to be written → simpler operators; versions come down.

    Raises `PassError` when something remains that is newer than the target reads.
    """
    if scope.target.sizes_on_cpu:
        without_sizes(scope)
    if scope.target.conv_channels > 1:
        for node in scope.editor.nodes("Conv"):
            _pad_channels(node, scope)
    if scope.why_not("ai.onnx.Attention") is not None:
        for node in scope.editor.nodes("Attention"):
            _lower_attention(node, scope)
    if scope.why_not("GroupNormalization") is not None:
        for node in scope.editor.nodes("GroupNormalization"):
            _lower_group_normalization(node, scope)
    if scope.why_not("RMSNormalization") is not None:
        for node in scope.editor.nodes("RMSNormalization"):
            _lower_rms_normalization(node, scope)
    if scope.why_not("ai.onnx.RotaryEmbedding") is not None:
        for node in scope.editor.nodes("RotaryEmbedding"):
            _lower_rotary_embedding(node, scope)
    if "Gemm" in scope.target.avoided:
        for node in scope.editor.nodes("Gemm"):
            _lower_gemm(node, scope)
    if "ArgMax" in scope.target.avoided:
        for node in scope.editor.nodes("ArgMax"):
            _lower_argmax(node, scope)
    _stamp(scope)


def _lower_attention(node: ir.Node, scope: Scope) -> None:
    """Softmax(scale · Q · Kᵀ + mask) · V on (B, heads, S, D)."""
    query, key, value = (required(node, index) for index in range(3))
    size = dims_of(query)[-1] if dims_of(query) else None
    several = any(output.uses() for output in node.outputs[1:]) or any(input_of(node, index) for index in (4, 5, 6))
    plain = not attribute(node, "is_causal", 0) and not attribute(node, "softcap", 0.0) and not several
    if rank_of(query) != 4 or not isinstance(size, int) or not plain:
        scope.refuse("Attention of this form has no simpler spelling here")
        return
    heads, shared = dims_of(query)[1], dims_of(key)[1]
    if heads != shared:
        if not isinstance(heads, int) or not isinstance(shared, int):
            scope.refuse("Attention of this form has no simpler spelling here")
            return
        key, value = (_for_each(part, heads // shared, node, scope) for part in (key, value))
    editor, result, name = scope.editor, node.outputs[0], node.outputs[0].name
    scale = editor.constant(float(attribute(node, "scale", None) or size**-0.5), np.float32)
    scaled = editor.add("Mul", [query, scale], dims_of(query), before=node, name=f"{name}.query")
    turned = _transposed_key(key, node, scope)
    scores_dims = (*dims_of(query)[:3], dims_of(key)[2])
    products = editor.add("MatMul", [scaled, turned], scores_dims, before=node, name=f"{name}.scores")
    mask, scores = input_of(node, 3), products
    if mask is not None:
        bias = _mask_bias(mask, node, scope)
        scores = editor.add("Add", [products, bias], scores_dims, before=node, name=f"{name}.masked")
    shares = editor.add("Softmax", [scores], scores_dims, before=node, name=f"{name}.shares", attributes={"axis": -1})
    total = editor.add("MatMul", [shares, value], dims_of(result), before=node, name=f"{name}.sum")
    if scope.precision != scope.precision_of("Attention"):
        for part in (scaled, products, scores, shares, total):
            node_of(part).metadata_props[OPERATOR_KEY] = "Attention"
    editor.replace(result, total)
    scope.fused["Attention lowered"] += 1


def _for_each(value: ir.Value, times: int, node: ir.Node, scope: Scope) -> ir.Value:
    """Return heads of keys or values once for each that shares them."""
    editor, name = scope.editor, value.name
    batch, heads, sequence, size = dims_of(value)
    assert isinstance(heads, int)
    assert isinstance(size, int)
    apart = editor.add(
        "Unsqueeze", [value, editor.shape_constant(2)], (batch, heads, 1, sequence, size), before=node,
        name=f"{name}.shared",
    )  # fmt: skip
    several = editor.add(
        "Expand", [apart, editor.shape_constant(1, 1, times, 1, 1)], (batch, heads, times, sequence, size),
        before=node, name=f"{name}.repeated",
    )  # fmt: skip
    return editor.add(
        "Reshape", [several, editor.shape_constant(0, heads * times, -1, size)],
        (batch, heads * times, sequence, size), before=node, name=f"{name}.of_each",
    )  # fmt: skip


def _transposed_key(key: ir.Value, node: ir.Node, scope: Scope) -> ir.Value:
    """Return (B, heads, D, S), by one Transpose also where `key` comes from one."""
    before = producer(key, "Transpose")
    swap = (0, 1, 3, 2)
    if before is None:
        return scope.editor.transpose(key, swap, before=node)
    perm = perm_of(before)
    return scope.editor.transpose(required(before, 0), [perm[axis] for axis in swap], before=node)


def _mask_bias(mask: ir.Value, node: ir.Node, scope: Scope) -> ir.Value:
    if mask.dtype != ir.DataType.BOOL:
        return mask
    editor = scope.editor
    kept, dropped = editor.constant(0.0, np.float32), editor.constant(MASKED, np.float32)
    return editor.add(
        "Where", [mask, kept, dropped], dims_of(mask), before=node, name=f"{mask.name}.bias", dtype=kept.dtype
    )


def _lower_group_normalization(node: ir.Node, scope: Scope) -> None:
    """InstanceNormalization over groups, then scale and bias per channel."""
    value, scale, bias = (required(node, index) for index in range(3))
    dims, groups = dims_of(value), attribute(node, "num_groups", 0)
    if len(dims) < 3 or not isinstance(dims[1], int):
        scope.refuse("GroupNormalization of this form has no simpler spelling here")
        return
    editor, result, name = scope.editor, node.outputs[0], node.outputs[0].name
    normal = (_normal_by_batch if scope.target.sizes_on_cpu else _normal_by_channels)(node, value, groups, scope)
    column = (dims[1], *[1] * (len(dims) - 2))
    factor, offset = (
        editor.add(
            "Reshape",
            [vector, editor.shape_constant(*column)],
            column,
            before=node,
            name=f"{vector.name}.column",
        )
        for vector in (scale, bias)
    )  # fmt: skip
    scaled = editor.add("Mul", [normal, factor], dims, before=node, name=f"{name}.scaled")
    editor.replace(result, editor.add("Add", [scaled, offset], dims, before=node, name=f"{name}.shifted"))
    scope.fused["GroupNormalization lowered"] += 1


def _normal_by_channels(node: ir.Node, value: ir.Value, groups: int, scope: Scope) -> ir.Value:
    """Groups as channels, then the shape of `value` again."""
    editor, dims, name = scope.editor, dims_of(value), node.outputs[0].name
    grouped = editor.add(
        "Reshape", [value, editor.shape_constant(0, groups, -1)], (dims[0], groups, None),
        before=node, name=f"{name}.groups",
    )  # fmt: skip
    normal = _instance_norm(node, grouped, groups, scope)
    sizes = editor.add("Shape", [value], (len(dims),), before=node, name=f"{name}.sizes", dtype=ir.DataType.INT64)
    return editor.add("Reshape", [normal, sizes], dims, before=node, name=f"{name}.image")


def _normal_by_batch(node: ir.Node, value: ir.Value, groups: int, scope: Scope) -> ir.Value:
    """Groups as pictures of one channel: (N, C, H, W) ↔ (N·G, C/G, H, W), so that no size need be known."""
    editor, dims, name = scope.editor, dims_of(value), node.outputs[0].name
    assert isinstance(dims[1], int)
    copied, one = [0] * (len(dims) - 2), editor.shape_constant(1)
    apart = (None, dims[1] // groups, *dims[2:])
    alone = (None, 1, *apart[1:])
    parts = editor.add(
        "Reshape", [value, editor.shape_constant(-1, dims[1] // groups, *copied)], apart,
        before=node, name=f"{name}.groups",
    )  # fmt: skip
    grouped = editor.add("Unsqueeze", [parts, one], alone, before=node, name=f"{name}.alone")
    normal = _instance_norm(node, grouped, 1, scope)
    joined = editor.add("Squeeze", [normal, one], apart, before=node, name=f"{name}.parts")
    whole = editor.shape_constant(-1, dims[1], *copied)
    return editor.add("Reshape", [joined, whole], dims, before=node, name=f"{name}.image")


def _instance_norm(node: ir.Node, grouped: ir.Value, channels: int, scope: Scope) -> ir.Value:
    editor = scope.editor
    ones, zeros = (editor.constant([number] * channels, np.float32) for number in (1.0, 0.0))
    return editor.add(
        "InstanceNormalization", [grouped, ones, zeros], dims_of(grouped), before=node,
        name=f"{node.outputs[0].name}.normal",
        attributes={"epsilon": attribute(node, "epsilon", 1e-5)},
    )  # fmt: skip


def _lower_rms_normalization(node: ir.Node, scope: Scope) -> None:
    """LayerNormalization of values beside their negatives, whose mean is 0; the squares are summed in float32 there."""
    editor, value, scale, result = scope.editor, required(node, 0), required(node, 1), node.outputs[0]
    dims, width, name = dims_of(value), dims_of(value)[-1], result.name
    if attribute(node, "axis", -1) not in (-1, len(dims) - 1) or not isinstance(width, int):
        scope.refuse("RMSNormalization of this form has no simpler spelling here")
        return
    twice = (*dims[:-1], 2 * width)
    negative = editor.add("Neg", [value], dims, before=node, name=f"{name}.negative")
    both = editor.add("Concat", [value, negative], twice, before=node, name=f"{name}.both", attributes={"axis": -1})
    scales = editor.add(
        "Concat", [scale, scale], (2 * width,), before=node, name=f"{name}.scales", attributes={"axis": 0}
    )
    normal = editor.add(
        "LayerNormalization", [both, scales], twice, before=node, name=f"{name}.normal",
        attributes={"axis": -1, "epsilon": attribute(node, "epsilon", 1e-5)},
    )  # fmt: skip
    bounds = [editor.shape_constant(number) for number in (0, width, -1)]
    editor.replace(result, editor.add("Slice", [normal, *bounds], dims, before=node, name=f"{name}.half"))
    scope.fused["RMSNormalization lowered"] += 1


def _lower_rotary_embedding(node: ir.Node, scope: Scope) -> None:
    """RotaryEmbedding of com.microsoft where a table serves the whole batch, else its sums."""
    value, tables = required(node, 0), [required(node, index) for index in (1, 2)]
    rank, heads = rank_of(value), attribute(node, "num_heads", 0)
    partial = attribute(node, "rotary_embedding_dim", 0) or input_of(node, 3) is not None
    width = dims_of(value)[-1] if rank in (3, 4) else None
    if not isinstance(width, int) or (rank == 3 and not heads) or partial:
        scope.refuse("RotaryEmbedding of this form has no simpler spelling here")
        return
    shared = [_for_all(table, node, scope) for table in tables]
    known = [table for table in shared if table is not None]
    if len(known) == 2 and scope.why_not("RotaryEmbedding") is None:
        attributes = {"interleaved": attribute(node, "interleaved", 0), "num_heads": heads}
        inputs = [value, scope.editor.shape_constant(0), *known]
        write(scope, "RotaryEmbedding", inputs, node.outputs[0], "turned", attributes=attributes)
        return
    _write_rotation(node, value, tables, width if rank == 4 else width // heads, scope)
    scope.fused["RotaryEmbedding lowered"] += 1


def _for_all(table: ir.Value, node: ir.Node, scope: Scope) -> ir.Value | None:
    """Return the (S, D/2) that a (B, S, D/2) repeats for each of the batch, or `None` if it may differ."""
    expand, dims = producer(table, "Expand"), dims_of(table)
    source = None if expand is None else required(expand, 0)
    if source is None or not same_dims(dims_of(source)[-2:], dims[-2:]):
        return None
    if rank_of(source) == 2:
        return source
    if rank_of(source) != 3 or dims_of(source)[0] != 1:
        return None
    zero = scope.editor.shape_constant(0)
    return scope.editor.add("Squeeze", [source, zero], dims[1:], before=node, name=f"{table.name}.table")


def _write_rotation(node: ir.Node, value: ir.Value, tables: Sequence[ir.Value], size: int, scope: Scope) -> None:
    """Write the sums on (B, S, heads·D), or on (B, heads, S, D)."""
    editor, result, name = scope.editor, node.outputs[0], node.outputs[0].name
    leading, width = dims_of(value)[:-1], dims_of(value)[-1]
    assert isinstance(width, int)
    heads = () if len(leading) == 3 else (width // size,)
    interleaved = bool(attribute(node, "interleaved", 0))
    apart, one = ((size // 2, 2), (size // 2, 1)) if interleaved else ((2, size // 2), (1, size // 2))
    axis = -1 if interleaved else -2
    pairs = editor.add(
        "Reshape", [value, editor.shape_constant(*[0] * len(leading), *heads, *apart)], (*leading, *heads, *apart),
        before=node, name=f"{name}.pairs",
    )  # fmt: skip
    dims = (*leading, *heads, *one)
    first, second = (
        editor.add(
            "Slice",
            [pairs, *(editor.shape_constant(number) for number in (start, start + 1, axis))],
            dims,
            before=node,
            name=f"{name}.{word}",
        )
        for start, word in enumerate(("first", "second"))
    )
    # Tables are (B, S, D/2): heads come behind the places, or before them.
    alone = 1 if len(leading) == 3 else 2
    batch, places = dims_of(tables[0])[:2]
    table_dims = (batch, 1, places, *one) if alone == 1 else (batch, places, 1, *one)
    axes = editor.shape_constant(alone, 4 if interleaved else 3)
    cos, sin = (
        editor.add("Unsqueeze", [table, axes], table_dims, before=node, name=f"{table.name}.apart") for table in tables
    )

    def product(part: ir.Value, factor: ir.Value) -> ir.Value:
        return editor.add("Mul", [part, factor], dims, before=node, name=f"{name}.product")

    turned = [
        editor.add(kind, [product(first, left), product(second, right)], dims, before=node, name=f"{name}.turned")
        for kind, left, right in (("Sub", cos, sin), ("Add", sin, cos))
    ]
    both = editor.add(
        "Concat", turned, (*leading, *heads, *apart), before=node, name=f"{name}.both", attributes={"axis": axis}
    )
    whole = editor.add(
        "Reshape", [both, editor.shape_constant(*[0] * len(leading), width)], dims_of(result), before=node,
        name=f"{name}.whole",
    )  # fmt: skip
    editor.replace(result, whole)


def _lower_gemm(node: ir.Node, scope: Scope) -> None:
    """MatMul, and Add for the bias."""
    value, weight, bias, result = required(node, 0), required(node, 1), input_of(node, 2), node.outputs[0]
    factors = [attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)]
    if attribute(node, "transA", 0) or factors != [1.0, 1.0]:
        scope.refuse("Gemm of this form is kept")
        return
    editor, dims = scope.editor, dims_of(result)
    if attribute(node, "transB", 0):
        weight = editor.transpose(weight, (1, 0), before=node)
    product = editor.add("MatMul", [value, weight], dims, before=node, name=f"{result.name}.product")
    if bias is not None:
        product = editor.add("Add", [product, bias], dims, before=node, name=f"{result.name}.shifted")
    editor.replace(result, product)
    scope.fused["Gemm lowered"] += 1


def _lower_argmax(node: ir.Node, scope: Scope) -> None:
    """Place of the first of the largest whole numbers: as many as come before it."""
    value, result, axis = required(node, 0), node.outputs[0], attribute(node, "axis", 0)
    if value.dtype not in (ir.DataType.INT32, ir.DataType.INT64) or attribute(node, "select_last_index", 0):
        return
    editor, name, dims, rank = scope.editor, result.name, dims_of(value), rank_of(value)
    axes = editor.shape_constant(axis)
    if rank is None:
        scope.refuse("ArgMax of this form is kept")
        return
    one = tuple(1 if place == axis % rank else size for place, size in enumerate(dims))
    largest = editor.add(
        "ReduceMax", [value, axes], one, before=node, name=f"{name}.largest", attributes={"keepdims": 1}
    )
    found = editor.add("Equal", [value, largest], dims, before=node, name=f"{name}.found", dtype=ir.DataType.BOOL)
    found = editor.add(
        "Cast", [found], dims, before=node, name=f"{name}.ones", attributes={"to": int(ir.DataType.INT32)},
        dtype=ir.DataType.INT32,
    )  # fmt: skip
    seen = editor.add("CumSum", [found, editor.constant(axis, np.int64)], dims, before=node, name=f"{name}.seen")
    before = editor.add(
        "Equal", [seen, editor.constant(0, np.int32)], dims, before=node, name=f"{name}.before", dtype=ir.DataType.BOOL
    )
    before = editor.add(
        "Cast", [before], dims, before=node, name=f"{name}.counted", attributes={"to": int(ir.DataType.INT64)},
        dtype=ir.DataType.INT64,
    )  # fmt: skip
    keep = {"keepdims": attribute(node, "keepdims", 1)}
    editor.replace(
        result,
        editor.add("ReduceSum", [before, axes], dims_of(result), before=node, name=f"{name}.place", attributes=keep),
    )
    scope.fused["ArgMax lowered"] += 1


def _pad_channels(node: ir.Node, scope: Scope) -> None:
    """Channels of zeros, in value and weight, up to a number that the target's convolution is right for."""
    value, weight = required(node, 0), required(node, 1)
    channels, multiple = dims_of(weight)[1], scope.target.conv_channels
    if (
        not isinstance(channels, int)
        or channels < multiple
        or not channels % multiple
        or attribute(node, "group", 1) != 1
    ):
        return
    missing, rank = -channels % multiple, len(dims_of(weight))
    pads = scope.editor.shape_constant(*[0] * rank, 0, missing, *[0] * (rank - 2))
    for index, operand in enumerate((value, weight)):
        dims = dims_of(operand)
        padded = (dims[0], channels + missing, *dims[2:])
        wider = scope.editor.add("Pad", [operand, pads], padded, before=node, name=f"{operand.name}.padded")
        node.replace_input_with(index, wider)
    scope.fused["Conv padded"] += 1


def _stamp(scope: Scope) -> None:
    model, target = scope.editor.model, scope.target
    current = model.opset_imports[""]
    nodes = [node for node in scope.editor.graph if not node.domain]
    lowest = max((lowest_opset(node, current) for node in nodes), default=LOWEST_OPSET)
    if lowest > target.opset:
        newest = sorted({node.op_type for node in nodes if lowest_opset(node, current) > target.opset})
        raise PassError(
            f"{target.name} reads opset {target.opset}, but {', '.join(newest)} needs {lowest}, and has no simpler "
            "spelling in this form; " + ("; ".join(scope.left) or "leave the attention rules switched on")
        )
    model.opset_imports[""] = lowest
    model.ir_version = min(model.ir_version, target.ir_version, _IR_11 if lowest >= _OPSET_OF_IR_11 else _IR_10)


def lowest_opset(node: ir.Node, current: int) -> int:
    """Return the lowest opset, from `LOWEST_OPSET` up, that has this operator with the same signature."""
    return _lowest_opset(node.op_type, frozenset(node.attributes), current)


@cache
def _lowest_opset(op_type: str, attributes: frozenset[str], current: int) -> int:
    newest = onnx.defs.get_schema(op_type, current, "")
    lowest = current
    while lowest > LOWEST_OPSET and onnx.defs.has(op_type, lowest - 1, ""):
        older = onnx.defs.get_schema(op_type, lowest - 1, "")
        same_inputs = [value.name for value in older.inputs] == [value.name for value in newest.inputs]
        if older.deprecated or not same_inputs or not attributes <= set(older.attributes):
            break
        lowest -= 1
    return lowest
