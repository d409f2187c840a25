"""Simplify a weightless graph: fold what is constant, drop what is dead, keep every block name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def simplify(model: ir.Model) -> None:
    """Fold constants, remove dead and repeated nodes, and number the nodes, in place."""
    import onnxscript.optimizer
    from onnx_ir.passes import common

    onnxscript.optimizer.optimize(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
