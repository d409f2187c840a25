"""`quick_gelu`, `tanh_gelu`, `bias_gelu`, `fast_gelu`, `bias_split_gelu`, `bias_add`: activations, GEGLU, residuals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    attribute,
    constant_array,
    constant_float,
    input_of,
    is_used_once,
    only_user,
    other_input,
    producer,
    rank_of,
    required,
    same_shape,
    width_of,
)
from olivelike.graphs.fusion.writing import Biased, private_bias, write

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope


def quick_gelu(scope: Scope) -> None:
    """X · Sigmoid(alpha · x) with a constant alpha → QuickGelu."""
    for product in scope.editor.nodes("Mul"):
        found = _quick_gelu(product)
        if found is None:
            continue
        if scope.may_write("QuickGelu"):
            value, alpha = found
            write(scope, "QuickGelu", [value], product.outputs[0], attributes={"alpha": alpha})


def tanh_gelu(scope: Scope) -> None:
    """Half of x · (1 + Tanh(√(2/π) · (x + 0.044715 · x³))) → FastGelu, or Gelu with tanh where that has no kernel."""
    for tanh in scope.editor.nodes("Tanh"):
        found = _tanh_gelu(tanh)
        if found is None:
            continue
        value, result = found
        if scope.why_not("FastGelu") is None:
            write(scope, "FastGelu", [value], result)
        else:
            attributes = {"approximate": "tanh"}
            write(scope, "Gelu", [value], result, attributes=attributes, domain="")


def bias_gelu(scope: Scope) -> None:
    """Gelu of a value plus a 1-D bias → BiasGelu, or FastGelu where the network's own Gelu has tanh."""
    for node in scope.editor.nodes("Gelu"):
        found = private_bias(node.inputs[0], scope.editor)
        if found is None:
            continue
        operator = "BiasGelu" if attribute(node, "approximate", "none") == "none" else "FastGelu"
        if scope.may_write(operator):
            write(scope, operator, [found.value, found.bias], node.outputs[0])


def fast_gelu(scope: Scope) -> None:
    """Gelu or BiasGelu → FastGelu, the tanh approximation: close to 1e-3, off unless asked for."""
    for node in (*scope.editor.nodes("Gelu"), *scope.editor.nodes("BiasGelu", domain=CONTRIB)):
        if not scope.may_write("FastGelu"):
            continue
        value, bias = required(node, 0), input_of(node, 1)
        found = private_bias(value, scope.editor) if bias is None else None
        if found is not None:
            value, bias = found.value, found.bias
        write(scope, "FastGelu", [value, bias], node.outputs[0])


def _quick_gelu(product: ir.Node) -> tuple[ir.Value, float] | None:
    for index in (0, 1):
        sigmoid = producer(product.inputs[index], "Sigmoid")
        if sigmoid is None or not is_used_once(sigmoid.outputs[0]):
            continue
        value = other_input(product, sigmoid.outputs[0])
        scaled = producer(sigmoid.inputs[0], "Mul")
        if scaled is None or value not in scaled.inputs or not is_used_once(scaled.outputs[0]):
            continue
        alpha = constant_float(other_input(scaled, value))
        if alpha is not None and same_shape(value, product.outputs[0]):
            return value, alpha
    return None


def _tanh_gelu(tanh: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return what such a Gelu takes and gives, as `NewGELUActivation` of transformers is traced."""
    total = producer(_times(required(tanh, 0), math.sqrt(2 / math.pi)), "Add")
    shifted = only_user(tanh.outputs[0], "Add")
    if total is None or shifted is None or constant_float(other_input(shifted, tanh.outputs[0])) != 1.0:
        return None
    product = only_user(shifted.outputs[0], "Mul")
    if product is None:
        return None
    value = _times(other_input(product, shifted.outputs[0]), 0.5)
    if value is None or value not in total.inputs or not same_shape(value, product.outputs[0]):
        return None
    cube = producer(_times(other_input(total, value), 0.044715), "Pow")
    if cube is None or cube.inputs[0] is not value or constant_float(cube.inputs[1]) != 3.0:
        return None
    return value, product.outputs[0]


def _times(value: ir.Value | None, number: float) -> ir.Value | None:
    """Return what a value is the product of, beside this number."""
    product = producer(value, "Mul")
    if product is None:
        return None
    for index in (0, 1):
        found = constant_float(product.inputs[index])
        if found is not None and math.isclose(found, number, rel_tol=1e-6):
            return product.inputs[1 - index]
    return None


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
            write(scope, "BiasSplitGelu", [found.value, found.bias], product.outputs[0])


def bias_add(scope: Scope) -> None:
    """Add of a 1-D bias, then of a value of the same shape → BiasAdd."""
    for node in scope.editor.nodes("Add"):
        found = _residual(node, scope)
        if found is None:
            continue
        linear, skip = found
        if scope.may_write("BiasAdd", width=width_of(skip)):
            write(scope, "BiasAdd", [linear.value, linear.bias, skip], node.outputs[0])


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
