"""`cleanup`: shape arithmetic that shapes answer, operators that do nothing, repeated and dead nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.dimensions import same_dim
from olivelike.graphs.editing.values import Dims, attribute, constant_array, dims_of, producer, required, same_shape
from olivelike.graphs.fusion.writing import write

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope


def cleanup(scope: Scope) -> None:
    """Computed shapes of Reshape → constant ones; repeats, idle Reshape, Cast, Expand, Identity → nothing."""
    from onnx_ir.passes import common

    for node in scope.editor.nodes("Reshape"):
        _simplify_reshape(node, scope)
    for node in scope.editor.nodes("Cast", "Expand", "Identity", "Reshape"):
        _drop_if_idle(node, scope)
    before = len(scope.editor.graph)
    common.CommonSubexpressionEliminationPass()(scope.editor.model)
    common.RemoveUnusedNodesPass()(scope.editor.model)
    removed = before - len(scope.editor.graph)
    if removed:
        scope.fused["repeated or dead nodes removed"] += removed


def _simplify_reshape(node: ir.Node, scope: Scope) -> None:
    source, result = required(node, 0), node.outputs[0]
    inner = producer(source, "Reshape")
    if inner is not None and constant_target(dims_of(required(inner, 0)), dims_of(result)) is not None:
        source = required(inner, 0)
    elif constant_array(node.inputs[1]) is not None:
        return
    target = constant_target(dims_of(source), dims_of(result))
    if target is None or source.shape is None or result.shape is None:
        return
    inputs = [source, scope.editor.shape_constant(*target)]
    write(scope, "Reshape", inputs, result, "reshaped", domain="", counted="computed shapes replaced")


def constant_target(source: Dims, result: Dims) -> tuple[int, ...] | None:
    """Return what Reshape takes to turn one shape into another: sizes, 0 to copy a dimension, one -1."""
    target: list[int] = []
    for index, dim in enumerate(result):
        copied = index < len(source) and same_dim(source[index], dim)
        if isinstance(dim, int):
            target.append(dim)
        else:
            target.append(0 if copied else -1)
    fits = result and target.count(-1) <= 1 and all(not isinstance(dim, int) or dim > 0 for dim in result)
    return tuple(target) if fits else None


def _drop_if_idle(node: ir.Node, scope: Scope) -> None:
    source, result = required(node, 0), node.outputs[0]
    idle = {"Cast": source.dtype is not None and attribute(node, "to", 0) == source.dtype, "Identity": True}.get(
        node.op_type, same_shape(source, result)
    )
    # An input can't be an output under another name.
    if not idle or (result.is_graph_output() and (source.producer() is None or source.is_graph_output())):
        return
    scope.editor.replace(result, source)
    scope.fused[f"idle {node.op_type} removed"] += 1
