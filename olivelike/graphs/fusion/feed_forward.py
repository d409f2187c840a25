"""`bias_split_gelu` and `bias_add`: the feed-forward of a transformer block, GEGLU and residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    attribute,
    constant_array,
    dims_of,
    input_of,
    is_used_once,
    only_user,
    producer,
    rank_of,
    required,
    same_shape,
    width_of,
)
from olivelike.graphs.fusion.bias import Biased, private_bias

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope


def bias_split_gelu(scope: Scope) -> None:
    """GEGLU (bias Add, Split in halves, left · Gelu(right)) → BiasSplitGelu."""
    for split in scope.editor.nodes("Split"):
        product = _gated_product(split)
        if product is None:
            continue
        value = required(split, 0)
        found = private_bias(value, scope.editor)
        if found is None or rank_of(value) != 3:
            scope.refuse("GEGLU's input is not a 3-D value plus a 1-D bias")
            continue
        if scope.may_write("BiasSplitGelu", width=width_of(value)):
            _write("BiasSplitGelu", [found.value, found.bias], product, scope)


def bias_add(scope: Scope) -> None:
    """Add of a 1-D bias, then of a value of the same shape → BiasAdd."""
    for node in scope.editor.nodes("Add"):
        found = _residual(node, scope)
        if found is None:
            continue
        linear, skip = found
        if scope.may_write("BiasAdd", width=width_of(skip)):
            _write("BiasAdd", [linear.value, linear.bias, skip], node, scope)


def _gated_product(split: ir.Node) -> ir.Node | None:
    """Return the Mul of the left half with the exact Gelu of the right half."""
    if len(split.outputs) != 2 or attribute(split, "axis", 0) not in {-1, 2} or not _is_even(split):
        return None
    left, right = split.outputs
    gelu = only_user(right, "Gelu")
    product = only_user(left, "Mul")
    if gelu is None or product is None or attribute(gelu, "approximate", "none") != "none":
        return None
    gate = gelu.outputs[0]
    return product if is_used_once(gate) and gate in product.inputs else None


def _is_even(split: ir.Node) -> bool:
    sizes = constant_array(input_of(split, 1))
    if input_of(split, 1) is not None:
        return sizes is not None and len(set(sizes.tolist())) == 1
    width = width_of(required(split, 0))
    return width is not None and width % 2 == 0


def _residual(node: ir.Node, scope: Scope) -> tuple[Biased, ir.Value] | None:
    """Return the biased product of a linear layer, and the value of the same shape that is added to it."""
    total = node.outputs[0]
    if rank_of(total) != 3:
        return None
    for linear, skip in ((0, 1), (1, 0)):
        found = private_bias(node.inputs[linear], scope.editor)
        other = required(node, skip)
        if found is None or producer(found.value, "MatMul") is None:
            continue
        if same_shape(other, total) and same_shape(found.value, total):
            return found, other
    return None


def _write(op_type: str, inputs: list[ir.Value], last: ir.Node, scope: Scope) -> None:
    result = last.outputs[0]
    fused = scope.editor.add(
        op_type, inputs, dims_of(result), before=last, name=f"{result.name}.{op_type.lower()}", domain=CONTRIB
    )
    scope.editor.replace(result, fused)
    scope.fused[op_type] += 1
