"""`skip_layer_norm` and `bias_skip_layer_norm`: what is added in front of LayerNormalization joins it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    attribute,
    dims_of,
    input_of,
    node_of,
    only_user,
    producer,
    rank_of,
    required,
    same_shape,
    width_of,
)
from olivelike.graphs.fusion.bias import biased, private_bias, vector_of
from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope


def skip_layer_norm(scope: Scope) -> None:
    """Add of two values of one shape, then LayerNormalization → SkipLayerNormalization, its sum used on."""
    for node in scope.editor.nodes("LayerNormalization"):
        add = producer(node.inputs[0], "Add")
        if add is None or biased(add.outputs[0], scope.editor) is not None:
            continue
        reason = _unusual(node, add, scope)
        if reason is not None:
            scope.refuse(reason)
        elif scope.may_write("SkipLayerNormalization"):
            _write(node, add, scope)


def bias_skip_layer_norm(scope: Scope) -> None:
    """Bias added to an input of SkipLayerNormalization → its bias input."""
    for node in scope.editor.nodes("SkipLayerNormalization", domain=CONTRIB):
        if input_of(node, 4) is not None:
            continue
        for index in (0, 1):
            found = private_bias(node.inputs[index], scope.editor)
            if found is None:
                continue
            total = required(node, index)
            node.replace_input_with(index, found.value)
            node.resize_inputs(5)
            node.replace_input_with(4, found.bias)
            scope.editor.prune(node_of(total))
            scope.fused["SkipLayerNormalization, bias"] += 1
            break


def _unusual(node: ir.Node, add: ir.Node, scope: Scope) -> str | None:
    total = add.outputs[0]
    rank = rank_of(total)
    if rank != 3:
        return f"SkipLayerNormalization takes 3-D values, not {rank}-D"
    if not same_shape(required(add, 0), total) or not same_shape(required(add, 1), total):
        return "what is added in front of LayerNormalization is broadcast"
    if attribute(node, "axis", -1) not in {-1, 2} or attribute(node, "stash_type", 1) != 1:
        return "LayerNormalization is not over the last axis in float32"
    width = width_of(total)
    if not vector_of(node.inputs[1], width, scope.editor):
        return "LayerNormalization's scale is no 1-D weight"
    if input_of(node, 2) is not None and not vector_of(node.inputs[2], width, scope.editor):
        return "LayerNormalization's bias is no 1-D weight"
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "LayerNormalization's mean is used elsewhere"
    return None


def _write(node: ir.Node, add: ir.Node, scope: Scope) -> None:
    editor, total, result = scope.editor, add.outputs[0], node.outputs[0]
    # The sum may be used between the two nodes, so the fused one stands where the sum was computed.
    fused = editor.add(
        "SkipLayerNormalization", [add.inputs[0], add.inputs[1], *node.inputs[1:3]], dims_of(result),
        before=add, name=f"{result.name}.skip", domain=CONTRIB,
        attributes={"epsilon": attribute(node, "epsilon", 1e-5)},
        block=node.metadata_props.get(BLOCK_KEY, ""),
    )  # fmt: skip
    if only_user(total) is not node:
        written = node_of(fused)
        kept = editor.value(f"{total.name}.sum", dims_of(total), total.dtype)
        editor.add_outputs(written, None, None, kept)
        editor.replace(total, written.outputs[3])
    editor.replace(result, fused)
    scope.fused["SkipLayerNormalization"] += 1
