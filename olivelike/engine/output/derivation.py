"""How weights of a graph are derived from its parameters: as expressions, which a record can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from olivelike._untrusted import Json
from olivelike.engine.output.expressions import Array, Evaluator, Expression
from olivelike.errors import PassError
from olivelike.graphs.editing.values import constant_of, fixed_dims, type_of
from olivelike.model.graph import PARAMETER_KEY, is_barrier

if TYPE_CHECKING:
    from olivelike.model import Tensor, Weights

_IR_VERSION = 11
"""IR version of models of one operator; ONNX's reference implementation asks for one that it reads, and no more."""
_LARGEST_CONSTANT = 4096
"""Elements of a constant that a record holds; no derivation of ours comes near."""


def derive(value: ir.Value) -> Expression:
    """Return the expression of a value that depends on parameters and constants alone.

    Raises `PassError` when it depends on more than that, or an attribute or constant can't be kept.
    """
    name = value.metadata_props.get(PARAMETER_KEY)
    if name is not None:
        dtype = type_of(value)
        named = {} if dtype == ir.DataType.FLOAT else {"dtype": dtype.name}
        return {"parameter": name, "shape": list(fixed_dims(value)), **named}
    if value.const_value is not None:
        return _constant(value)
    node = value.producer()
    if node is None:
        raise PassError(f"{value.name!r} is no weight, but an input of the graph; take a value that has none above it")
    if is_barrier(node):
        raise PassError(
            f"{value.name!r} is no weight: {node.op_type} makes it when the graph runs; take the inputs of that node"
        )
    expression: Json = {"op": node.op_type}
    if node.domain:
        expression["domain"] = node.domain
    if node.attributes:
        expression["attributes"] = {a.name: _attribute(node, a) for a in node.attributes.values()}
    if (index := value.index()) not in (None, 0):
        expression["output"] = index
    expression["inputs"] = [None if operand is None else derive(operand) for operand in node.inputs]
    return expression


def evaluate_weight(value: ir.Value, weights: Weights, read: Callable[[Tensor], Array]) -> Array:
    """Return the values of one parameter or derived weight of a graph.

    Raises `PassError` when the value depends on more than weights, the table lacks a parameter, or an operator can't be
    evaluated.

    Args:
        value: Of a graph that it is still part of.
        weights: Table with the parameters that it derives from.
    """
    expression = derive(value)

    def parameter(name: str) -> Array:
        if name not in weights:
            raise PassError(f"the weights have no parameter {name!r}, which the graph needs")
        return read(weights[name])

    name = str(value.name)
    if value.graph is None and "op" in expression:
        raise PassError(f"{name!r} belongs to no graph any more; evaluate it before its node is removed")
    opsets = value.graph.opset_imports if value.graph is not None else {}
    return Evaluator(parameter, opsets, _IR_VERSION, name).evaluate(expression)


def _constant(value: ir.Value) -> Expression:
    constant = constant_of(value)
    array = constant.numpy()
    if array.size > _LARGEST_CONSTANT:
        raise PassError(f"weight {value.name!r} derives from a constant of {array.size} values; make it a parameter")
    return {"constant": array.reshape(-1).tolist(), "dtype": constant.dtype.name, "shape": list(array.shape)}


def _attribute(node: ir.Node, attribute: ir.Attr) -> Any:
    """Return an attribute as a JSON value."""
    value = attribute.value
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, int | float | str) for item in values):
        raise PassError(
            f"operator {node.op_type!r} derives a weight with attribute {attribute.name!r}, which a record can't hold"
        )
    return list(value) if isinstance(value, list | tuple) else value
