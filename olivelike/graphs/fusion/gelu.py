"""`quick_gelu`, `bias_gelu` and `fast_gelu`: activations of the text encoders and the vision tower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    attribute,
    constant_float,
    dims_of,
    input_of,
    is_used_once,
    node_of,
    other_input,
    producer,
    required,
    same_shape,
)
from olivelike.graphs.fusion.bias import private_bias

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
            _write("QuickGelu", [value], product.outputs[0], scope, {"alpha": alpha})


def bias_gelu(scope: Scope) -> None:
    """Gelu of a value plus a 1-D bias → BiasGelu."""
    for node in scope.editor.nodes("Gelu"):
        found = private_bias(node.inputs[0], scope.editor)
        if found is None:
            continue
        if attribute(node, "approximate", "none") != "none":
            scope.refuse("Gelu is the tanh approximation; `fast_gelu` fuses it")
        elif scope.may_write("BiasGelu"):
            _write("BiasGelu", [found.value, found.bias], node.outputs[0], scope)


def fast_gelu(scope: Scope) -> None:
    """Gelu or BiasGelu → FastGelu, the tanh approximation: close to 1e-3, off unless asked for."""
    for node in (*scope.editor.nodes("Gelu"), *scope.editor.nodes("BiasGelu", domain=CONTRIB)):
        if not scope.may_write("FastGelu"):
            continue
        value, bias = required(node, 0), input_of(node, 1)
        found = private_bias(value, scope.editor) if bias is None else None
        if found is not None:
            value, bias = found.value, found.bias
        _write("FastGelu", [value, bias], node.outputs[0], scope)


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


def _write(
    op_type: str,
    inputs: list[ir.Value | None] | list[ir.Value],
    result: ir.Value,
    scope: Scope,
    attributes: dict[str, float] | None = None,
) -> None:
    node = node_of(result)
    fused = scope.editor.add(
        op_type, inputs, dims_of(result),
        before=node, name=f"{result.name}.{op_type.lower()}", attributes=attributes, domain=CONTRIB,
    )  # fmt: skip
    scope.editor.replace(result, fused)
    scope.fused[op_type] += 1
