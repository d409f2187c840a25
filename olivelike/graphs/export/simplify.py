"""Simplify a weightless graph: fold what is constant, drop what is dead, keep every block name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from olivelike.errors import PassError
from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnxscript.rewriter import RewriteRule

_RULES: Final = (
    "mul_by_1_rule", "add_0_rule", "sub_0_rule", "div_by_1_rule", "dropout_zero_rule", "dropout_inference_rule",
    "one_reshape_matmul_reshape_rule", "two_reshapes_matmul_reshape_rule",
    "cast_constant_of_shape_rule", "cast_constant_of_shape_without_value_rule",
    "collapse_slice_rule", "collapse_slice2_rule", "materialize_reshape_shape_rule",
    "cast_cast_rule", "no_op_cast_rule", "no_op_expand_rule", "flatten_to_reshape_rule", "reshape_reshape_rule",
    "no_op_transpose_rule", "transpose_transpose_rule", "unsqueeze_unsqueeze_rule", "squeeze_reshape_1d_rule",
    "normalize_pad_format_conv_rule", "fuse_pad_into_conv_rule",
    "remove_optional_bias_from_conv_rule", "remove_optional_bias_from_gemm_rule",
)  # fmt: skip
"""Of onnxscript's common rules, in the order of its optimiser, those for operators that these networks may have.

`slice_split_rule` is left out: it looks through the whole graph for each node, which took 7 s for a UNet.
"""
_NEWER: Final = {"materialize_reshape_shape_rule": (0, 7, 1)}
"""The release of onnxscript that a rule came with, where supported ones lack it."""
_ROUNDS: Final = 2


def simplify(model: ir.Model) -> None:
    """Fold constants, remove dead and repeated nodes and the rewriter's notes, in place."""
    from onnx_ir.passes import common

    blocks = {
        value.name: node.metadata_props.get(BLOCK_KEY) for node in model.graph for value in node.outputs
    }
    common.InlinePass()(model)
    _rewrite(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.OutputFixPass()(model)
    common.NameFixPass()(model)
    common.RemoveUnusedNodesPass()(model)
    for node in model.graph:
        # The rewriter keeps the names of values, and drops what it does not know of their nodes.
        block = next((blocks[value.name] for value in node.outputs if blocks.get(value.name)), None)
        if block:
            node.metadata_props.setdefault(BLOCK_KEY, block)
        for key in node.metadata_props.keys() - {BLOCK_KEY}:
            del node.metadata_props[key]


def _find_rules() -> list[RewriteRule]:
    """Return the rules that the installed onnxscript should have.

    Raises:
        PassError: when it lacks one.
    """
    import onnxscript
    from onnxscript.rewriter.rules import common as rules

    version = tuple(int(part) for part in re.findall(r"\d+", onnxscript.__version__)[:3])
    wanted = [name for name in _RULES if version >= _NEWER.get(name, ())]
    if missing := [name for name in wanted if not hasattr(rules, name)]:
        raise PassError(
            f"onnxscript {onnxscript.__version__} has no {', '.join(missing)}, without which graphs come out "
            "otherwise; install a release that olivelike supports (`pip install --upgrade olivelike`)"
        )
    return [getattr(rules, name) for name in wanted]


def _rewrite(model: ir.Model) -> None:
    """Fold constants and apply the rules, as long as something changes."""
    from onnx_ir.passes import common
    from onnxscript.optimizer import fold_constants
    from onnxscript.rewriter import RewritePass

    rewrite = RewritePass(_find_rules())
    for _ in range(_ROUNDS):
        folded = fold_constants(model, onnx_shape_inference=True).modified
        changed = rewrite(model).modified
        changed |= common.RemoveUnusedNodesPass()(model).modified
        changed |= common.RemoveUnusedOpsetsPass()(model).modified
        if not (folded or changed):
            break
