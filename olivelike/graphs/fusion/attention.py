"""`attention`: scaled dot-product attention with its head split and merge becomes one MultiHeadAttention.

Matches `ai.onnx` Attention on (B, S, heads·D) with `q_num_heads`, or on (B, heads, S, D) in front of the pair of
Transpose and Reshape that merges heads. What is attended to comes from (B, S, heads, D), perhaps by RMS norms, joined
sequences and heads that are shared, which are then written in that order of axes. Without mask, with the causal one, or
with another one, which is added to the scores.

Whether a mask is the causal one is told by its values and not by how it is spelled: it derives from sizes alone, so the
nodes behind it are evaluated for several sizes, and the result is compared with the lower triangle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from olivelike.graphs.editing.editor import GraphEditor
from olivelike.graphs.editing.values import (
    Attributes,
    Dim,
    Dims,
    attribute,
    constant_array,
    dims_of,
    input_of,
    only_user,
    perm_of,
    producer,
    rank_of,
    required,
    same_dim,
    same_dims,
    width_of,
)
from olivelike.graphs.fusion.rule import Scope
from olivelike.graphs.fusion.writing import MASKED, attributes_of, write
from olivelike.model.graph import BLOCK_KEY

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


Maker = Callable[[GraphEditor, ir.Node], ir.Value]


@dataclass(frozen=True)
class _Heads:
    """Attention with queries, keys, values and result as (B, S, heads·D)."""

    parts: tuple[Maker, Maker, Maker]
    """Make queries, keys and values in front of a node."""
    spans: tuple[Dims, Dims]
    """Batch and sequence of queries, and of keys."""
    result: ir.Value
    count: int
    size: int


def attention(scope: Scope) -> None:
    """Attention with its head split and merge → MultiHeadAttention; a mask is `unidirectional` or `attention_bias`."""
    masks: dict[ir.Value, bool] = {}
    biases: dict[ir.Value, ir.Value] = {}
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
        mask = input_of(node, 3)
        causal = _is_causal(node, heads, scope, masks)
        if causal is None and (mask is None or attribute(node, "is_causal", 0) or not _is_whole(mask, heads)):
            scope.refuse("its mask is neither the causal one nor one for each query and key")
            continue
        bias = None if causal is not None or mask is None else _bias(mask, node, scope, biases)
        _write(node, heads, causal, bias, scope)


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
    dims = [dims_of(operand) for operand in (query, key, value)]
    split = [_by_sequence(operand) for operand in (query, key, value)]
    result = _after_merge(node.outputs[0])
    sources = [part for part in split if part is not None]
    if result is None or len(sources) != len(split):
        return None
    count, shared, size = dims[0][1], dims[1][1], dims[0][3]
    if not isinstance(count, int) or not isinstance(shared, int) or not isinstance(size, int) or count % shared:
        return None
    if dims[2][1] != shared or any(part[3] != size for part in dims):
        return None
    if shared != count:
        for index in (1, 2):
            sources[index] = _shared(sources[index], dims[index], count // shared, node.outputs[0].name or "")
    first, second, third = (_flattened(source, count * size) for source in sources)
    spans = (dims[0][0], dims[0][2]), (dims[1][0], dims[1][2])
    return _Heads((first, second, third), spans, result, count, size)


def _heads_of_three(node: ir.Node, query: ir.Value, key: ir.Value, value: ir.Value) -> _Heads | None:
    count, shared = attribute(node, "q_num_heads", 0), attribute(node, "kv_num_heads", 0)
    widths = [width_of(operand) for operand in (query, key, value)]
    if not count or count != shared or widths[0] is None or len(set(widths)) != 1 or widths[0] % count:
        return None
    first, second, third = (_itself(operand) for operand in (query, key, value))
    return _Heads(
        (first, second, third), (dims_of(query)[:2], dims_of(key)[:2]), node.outputs[0], count, widths[0] // count
    )


def _itself(value: ir.Value) -> Maker:
    return lambda editor, before: value  # noqa: ARG005


def _by_sequence(value: ir.Value) -> Maker | None:
    """Return what makes (B, S, heads, D) of a value that is (B, heads, S, D), or `None`."""
    node = value.producer()
    if node is None or node.domain or rank_of(value) != 4:
        return None
    match node.op_type:
        case "Transpose" if perm_of(node) == _SPLIT_HEADS:
            return _itself(required(node, 0))
        case "RMSNormalization" if attribute(node, "axis", -1) in (-1, 3):
            return _again(node, [required(node, 0)], (required(node, 1),), attributes_of(node))
        case "Concat" if attribute(node, "axis", 0) in (-2, 2):
            return _again(node, [required(node, index) for index in range(len(node.inputs))], (), {"axis": 1})
        case "RotaryEmbedding" if len(node.inputs) == 3:
            return _turned(node)
        case "Reshape":
            return _repeated(node)
    return None


def _again(
    node: ir.Node, operands: Sequence[ir.Value], others: Sequence[ir.Value], attributes: Attributes
) -> Maker | None:
    """Return what writes a node on (B, S, heads, D), if all its operands have that form."""
    makers = [_by_sequence(operand) for operand in operands]
    known = [maker for maker in makers if maker is not None]
    if len(known) != len(makers):
        return None
    dims, name = dims_of(node.outputs[0]), node.outputs[0].name

    def make(editor: GraphEditor, before: ir.Node) -> ir.Value:
        parts = [maker(editor, before) for maker in known]
        return editor.add(
            node.op_type, [*parts, *others], tuple(dims[axis] for axis in _SPLIT_HEADS), before=before,
            name=f"{name}.by_sequence", attributes=attributes, block=node.metadata_props.get(BLOCK_KEY),
        )  # fmt: skip

    return make


def _turned(node: ir.Node) -> Maker | None:
    """Return what writes rotary embeddings on (B, S, heads·D)."""
    maker = _by_sequence(required(node, 0))
    batch, heads, sequence, size = dims_of(node.outputs[0])
    if maker is None or not isinstance(heads, int) or not isinstance(size, int):
        return None
    flat, name, width = _flattened(maker, heads * size), node.outputs[0].name, heads * size

    def make(editor: GraphEditor, before: ir.Node) -> ir.Value:
        turned = editor.add(
            node.op_type, [flat(editor, before), *node.inputs[1:]], (batch, sequence, width), before=before,
            name=f"{name}.flat", attributes={**attributes_of(node), "num_heads": heads},
        )  # fmt: skip
        return editor.add(
            "Reshape", [turned, editor.shape_constant(0, 0, heads, size)], (batch, sequence, heads, size),
            before=before, name=f"{name}.by_sequence",
        )  # fmt: skip

    return make


def _repeated(reshape: ir.Node) -> Maker | None:
    """Return what writes heads once for each that shares them: (B, heads, n, S, D) in front of a Reshape."""
    expand = producer(required(reshape, 0), "Expand")
    unsqueeze = None if expand is None else producer(expand.inputs[0], "Unsqueeze")
    if expand is None or unsqueeze is None or rank_of(expand.outputs[0]) != 5:
        return None
    source = required(unsqueeze, 0)
    maker, dims = _by_sequence(source), dims_of(source)
    times, whole = dims_of(expand.outputs[0])[2], dims_of(reshape.outputs[0])
    if maker is None or dims_of(unsqueeze.outputs[0])[1:3] != (dims[1], 1) or not isinstance(times, int):
        return None
    if not isinstance(dims[1], int) or whole[1] != dims[1] * times or whole[3] != dims[3]:
        return None
    return _shared(maker, dims, times, reshape.outputs[0].name or "")


def _shared(maker: Maker, dims: Dims, times: int, name: str) -> Maker:
    """Return what writes each head `times` times; `dims` are (B, heads, S, D)."""
    batch, heads, sequence, size = dims
    assert isinstance(heads, int)
    assert isinstance(size, int)

    def make(editor: GraphEditor, before: ir.Node) -> ir.Value:
        apart = editor.add(
            "Unsqueeze", [maker(editor, before), editor.shape_constant(3)], (batch, sequence, heads, 1, size),
            before=before, name=f"{name}.shared",
        )  # fmt: skip
        several = editor.add(
            "Expand", [apart, editor.shape_constant(1, 1, 1, times, 1)], (batch, sequence, heads, times, size),
            before=before, name=f"{name}.repeated",
        )  # fmt: skip
        return editor.add(
            "Reshape", [several, editor.shape_constant(0, 0, heads * times, size)],
            (batch, sequence, heads * times, size), before=before, name=f"{name}.by_sequence",
        )  # fmt: skip

    return make


def _flattened(maker: Maker, width: int) -> Maker:
    """Return what makes (B, S, heads·D) of what makes (B, S, heads, D)."""

    def make(editor: GraphEditor, before: ir.Node) -> ir.Value:
        split = maker(editor, before)
        reshape, dims = producer(split, "Reshape"), dims_of(split)
        if reshape is not None:
            source = required(reshape, 0)
            if rank_of(source) == 3 and width_of(source) == width and same_dims(dims_of(source)[:2], dims[:2]):
                return source
        return editor.add(
            "Reshape", [split, editor.shape_constant(0, 0, width)], (*dims[:2], width), before=before,
            name=f"{split.name}.flat",
        )  # fmt: skip

    return make


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
    batch, sequence = heads.spans[0]
    same_sequence = same_dims(*heads.spans)
    if attribute(node, "is_causal", 0):
        return True if mask is None and same_sequence else None
    if mask is None:
        return False
    if not same_sequence:
        return None
    if mask not in masks:
        masks[mask] = is_causal(mask, batch, sequence, scope.editor.model)
    return masks[mask] or None


def _is_whole(mask: ir.Value, heads: _Heads) -> bool:
    """Say whether a mask is (1 or B, 1 or heads, S, L)."""
    dims, (queries, keys) = dims_of(mask), heads.spans
    if len(dims) != 4 or not same_dims(dims[2:], (queries[1], keys[1])):
        return False
    return (dims[0] == 1 or same_dim(dims[0], queries[0])) and dims[1] in (1, heads.count)


def _write(node: ir.Node, heads: _Heads, causal: bool | None, bias: ir.Value | None, scope: Scope) -> None:
    attributes: dict[str, int | float] = {"num_heads": heads.count}
    scale = attribute(node, "scale", None)
    if scale is not None and not math.isclose(scale, heads.size**-0.5, rel_tol=1e-6):
        attributes["scale"] = scale
    if causal:
        attributes["unidirectional"] = 1
    inputs: list[ir.Value | None] = [make(scope.editor, node) for make in heads.parts]
    if bias is not None:
        inputs += [None, None, bias]
    write(scope, "MultiHeadAttention", inputs, heads.result, "attention", attributes=attributes, before=node)


def _bias(mask: ir.Value, before: ir.Node, scope: Scope, biases: dict[ir.Value, ir.Value]) -> ir.Value:
    """Return what is added to scores for a mask; a boolean one is true where a query may see a key."""
    if mask.dtype != ir.DataType.BOOL:
        return mask
    if mask not in biases:
        editor = scope.editor
        kept, dropped = editor.constant(0.0, np.float32), editor.constant(MASKED, np.float32)
        biases[mask] = editor.add(
            "Where", [mask, kept, dropped], dims_of(mask), before=before, name=f"{mask.name}.bias", dtype=kept.dtype
        )
    return biases[mask]


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
        [ir.serde.serialize_node(node) for node in arithmetic],
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
