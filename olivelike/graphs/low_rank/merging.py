"""Weights that take the change: x·(W + strength · down·up), for many rows of few features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import onnx_ir as ir

from olivelike.graphs.editing.values import dims_of
from olivelike.graphs.low_rank.branches import again, new_branch, swap
from olivelike.graphs.low_rank.layer_factors import dtype_of, features_of
from olivelike.graphs.low_rank.sums import with_bias

if TYPE_CHECKING:
    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.low_rank.layer_factors import Layers

MERGED_FEATURES: Final = 640
"""Most features that a layer takes whose weight gets down·up added to it: few, for the many rows of such layers."""


def can_merge(node: ir.Node) -> bool:
    """Tell whether adding down·up to the weight can be cheaper than x·down·up."""
    weight = node.inputs[1] if node.op_type == "MatMul" else None
    return (
        weight is not None
        and weight.is_initializer()
        and weight.dtype == dtype_of(node) == ir.DataType.FLOAT
        and features_of(node)[0] <= MERGED_FEATURES
    )


def changes_of(editor: GraphEditor, members: Layers, before: ir.Node) -> list[ir.Value]:
    """Return numbers of at least 0, which are all 0 if no weight changes: what the sizes of factors multiply to.

    Half a pair is refused, as it would be by down·up.
    """
    numbers = []
    for _, factors in members:
        for down, up, scale in zip(factors.downs, factors.ups, factors.scales, strict=True):
            name = f"{factors.name}.changes"
            sums = [
                editor.add(
                    "ReduceL1", [one, editor.shape_constant(1 - axis)], (None,), before=before, name=f"{name}.sums",
                    attributes={"keepdims": 0},
                )
                for one, axis in ((down, factors.down_axis), (up, factors.up_axis))
            ]  # fmt: skip
            product = editor.add("MatMul", sums, (), before=before, name=f"{name}.product")
            scaled = editor.add("Mul", [product, scale], (), before=before, name=f"{name}.scaled")
            numbers.append(editor.add("Abs", [scaled], (), before=before, name=name))
    return numbers


def merge(editor: GraphEditor, members: Layers, condition: ir.Value) -> None:
    """Let a branch multiply by weights that were changed, another by those that are constants.

    ONNX Runtime packs those, and then rounds otherwise: where all changes are 0 the latter is to be taken.
    """
    before = members[0][0]
    nodes, outputs = list[ir.Node](), list[ir.Value]()
    with new_branch(editor, before, "changed") as changed:
        for node, factors in members:
            down, up = factors.joined(editor, before)
            weight, name = node.inputs[1], f"{factors.name}.changed"
            assert weight is not None
            whole = editor.add("Gemm", [down, up, weight], dims_of(weight), before=before, name=name)
            total, bias = with_bias(node)
            made = again(editor, node, [node.inputs[0], whole], before)
            nodes.append(node)
            if bias is not None and (user := total.producer()) is not None:
                inputs = [made[0] if one is node.outputs[0] else one for one in user.inputs]
                made = again(editor, user, inputs, before)
                nodes.append(user)
            changed.results += made
            outputs.append(total)
    swap(editor, condition, changed, nodes, outputs)
