"""Changes in what takes that which layers make: what attends, and sums with a bias, are in both branches.

So nothing is added, nor copied, where there are no factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.values import dims_of
from olivelike.graphs.low_rank.branches import again, new_branch, swap
from olivelike.graphs.low_rank.layer_factors import taken_by, unknown
from olivelike.graphs.low_rank.sums import user_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.low_rank.layer_factors import Factors, Layers


def change_in_user(editor: GraphEditor, members: Layers, condition: ir.Value) -> None:
    """Let a branch take what layers make with their changes, another that without."""
    user = user_of(members[0][0])
    assert user is not None
    with new_branch(editor, user, "active") as active:
        inputs = list(user.inputs)
        for node, factors in members:
            made = node.outputs[0]
            change = multiplied(editor, node, factors, user)
            inputs[inputs.index(made)] = editor.add(
                "Add", [made, change], dims_of(made), before=user, name=f"{change.name}.changed"
            )
        active.results += again(editor, user, inputs, user)
    swap(editor, condition, active, [user], user.outputs)


def multiplied(editor: GraphEditor, node: ir.Node, factors: Factors, before: ir.Node) -> ir.Value:
    """Return x·down·up."""
    made = node.outputs[0]
    down, up = factors.joined(editor, before)
    name = f"{made.name}.lora"
    low = editor.add(
        "MatMul", [taken_by(node), down], unknown(made), before=before, name=f"{name}.low", dtype=made.dtype
    )
    return editor.add("MatMul", [low, up], unknown(made), before=before, name=name)
