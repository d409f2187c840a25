"""The operator that projects and attends: it takes x·down as more features, and `up` as their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.values import dims_of
from olivelike.graphs.low_rank.layer_factors import taken_by, unknown

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.low_rank.layer_factors import Factors


def widen(editor: GraphEditor, node: ir.Node, factors: Factors) -> None:
    """Widen what an operator takes, and its weight."""
    taken, weight = taken_by(node), node.inputs[1]
    assert weight is not None
    dims, name = dims_of(taken), weight.name
    down, up = factors.joined(editor, node)
    low = editor.add("MatMul", [taken, down], unknown(taken), before=node, name=f"{name}.low")
    wide = editor.add(
        "Concat", [taken, low], (*dims[:-1], None), before=node, name=f"{name}.taken", attributes={"axis": -1}
    )
    weights = editor.add(
        "Concat", [weight, up], (None, dims_of(weight)[1]), before=node, name=f"{name}.wide",
        attributes={"axis": 0},
    )  # fmt: skip
    node.replace_input_with(0, wide)
    node.replace_input_with(1, weights)
