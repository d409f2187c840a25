"""Telling whether an attention mask is the causal one, by its values and not by how it is spelled.

A causal mask derives from sizes alone. So the nodes behind it are evaluated for several sizes, and the result
is compared with the lower triangle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from olivelike.graphs.editing.values import attribute, constant_array, dims_of, required

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.graphs.editing.dimensions import Dim

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


def is_causal(mask: ir.Value, batch: Dim, sequence: Dim, model: ir.Model) -> bool:
    """Say whether `mask` lets each of `sequence` positions see itself and what is before it, and no more.

    Args:
        mask: Boolean (true: may see) or float (added to the scores), broadcasts to (B, heads, S, S).
        batch: Name or size of the batch dimension.
        sequence: Name or size of the sequence dimension.
        model: The model that the mask is in.
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
        known = {batch: sizes[0], sequence: sizes[1]} | {
            dim: dim for dim in (batch, sequence) if isinstance(dim, int)
        }
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


def _evaluator(
    mask: ir.Value, nodes: Sequence[ir.Node], model: ir.Model
) -> onnx.reference.ReferenceEvaluator:

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
    return ReferenceEvaluator(
        onnx.helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version)
    )


def _sizes_of(
    shape: ir.Node, known: dict[str | int | None, int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
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
