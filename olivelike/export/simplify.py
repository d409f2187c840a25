"""Simplify a weightless graph: fold what is constant, drop what is dead, keep every block name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir


def simplify(model: ir.Model) -> None:
    """Fold constants, remove dead and repeated nodes and the rewriter's notes, in place."""
    import onnxscript.optimizer
    from onnx_ir.passes import common

    blocks = {
        value.name: node.metadata_props.get(BLOCK_KEY) for node in model.graph for value in node.outputs
    }
    onnxscript.optimizer.optimize(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    for node in model.graph:
        # The rewriter keeps the names of values, and drops what it does not know of their nodes.
        block = next((blocks[value.name] for value in node.outputs if blocks.get(value.name)), None)
        if block:
            node.metadata_props.setdefault(BLOCK_KEY, block)
        for key in node.metadata_props.keys() - {BLOCK_KEY}:
            del node.metadata_props[key]
