"""How an initializer is derived from parameters: an expression that can be evaluated, and kept as JSON.

An expression is `{"parameter": NAME, "shape": […]}`, `{"constant": VALUES, "dtype": …, "shape": […]}`, or an operator
`{"op": "Transpose", "attributes": {"perm": [1, 0]}, "inputs": […]}` with `domain` where that is not ONNX's own, and
`output` where it is not the first. `null` stands for an input that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from olivelike._untrusted import Json, JsonView
from olivelike.errors import PassError
from olivelike.graphs.editing.values import constant_of, fixed_dims, type_of
from olivelike.model.finite_values import count_not_finite
from olivelike.model.graph import PARAMETER_KEY, QUANTISE_DOMAIN, is_barrier
from olivelike.model.half_values import HALVES, to_half
from olivelike.model.quantised_values import quantised_format

if TYPE_CHECKING:
    from olivelike.model import Tensor, Weights

Array = np.ndarray[Any, Any]
Expression = JsonView

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


def parameters(expression: Expression | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each parameter of an expression, as often as it occurs."""
    if expression is None:
        return
    if "parameter" in expression:
        yield expression["parameter"], tuple(expression["shape"])
    for operand in expression.get("inputs", ()):
        yield from parameters(operand)


def integer_parameters(expression: Expression | None) -> Iterator[str]:
    """Yield the names of an expression's parameters that are not of a float type."""
    if expression is None:
        return
    if "parameter" in expression and not is_float(ir.DataType[expression.get("dtype", "FLOAT")]):
        yield expression["parameter"]
    for operand in expression.get("inputs", ()):
        yield from integer_parameters(operand)


def operators(expression: Expression | None) -> Iterator[str]:
    """Yield the operator types of an expression."""
    if expression is not None and "op" in expression:
        yield expression["op"]
        for operand in expression["inputs"]:
            yield from operators(operand)


@dataclass
class Evaluator:
    """Evaluates expressions by ONNX's reference implementation; what two of them share is computed twice."""

    parameter: Callable[[str], Array]
    """Returns the values of a parameter."""
    opsets: Mapping[str, int]
    ir_version: int
    name: str = ""
    """Name of the derived value, for messages."""
    lost: dict[str, int] = field(default_factory=dict)
    """Values that half precision could not hold: `saturated` and `flushed`, over all evaluations."""
    others: list[Array] = field(default_factory=list)
    """The further outputs of the last weight that was quantised."""

    def evaluate(self, expression: Expression) -> Array:
        """Return the values of an expression.

        Raises `PassError` when an operator has no reference implementation, a parameter is an integer in the weights
        and none in the graph, or the other way round, or a weight that is quantised is not finite.
        """
        if "parameter" in expression:
            return self._as_the_graph_takes(expression, self.parameter(expression["parameter"]))
        if "constant" in expression:
            values = np.array(expression["constant"], ir.DataType[expression["dtype"]].numpy())
            return values.reshape(expression["shape"])
        operands = [None if operand is None else self.evaluate(operand) for operand in expression["inputs"]]
        if expression["op"] == "Cast" and expression["attributes"]["to"] in HALVES:
            assert operands[0] is not None
            return self._halved(operands[0], ir.DataType(expression["attributes"]["to"]))
        if expression.get("domain") == QUANTISE_DOMAIN:
            assert operands[0] is not None
            with np.errstate(invalid="ignore"):  # What NaN becomes as a whole number is refused below.
                found = quantised_format(expression).quantise(operands[0])
            if count_not_finite(found[1]):
                reason = "too large for its scales; put its block into `float_blocks`"
                if count := count_not_finite(operands[0]):
                    reason = (
                        f"infinite or NaN ({count:,} of them); get the checkpoint again, or find the pass that made "
                        "them with `verify` in front"
                    )
                raise PassError(f"weight {self._of(expression)} can't be quantised: it has values that are {reason}")
            self.others = found[1:]
            return found[expression.get("output", 0)]
        return _run(expression, operands, self.opsets, self.ir_version, self.name)

    def _as_the_graph_takes(self, expression: Expression, array: Array) -> Array:
        """Return a parameter's values in the type that the graph has it in; float types alone are converted."""
        wanted, found = ir.DataType[expression.get("dtype", "FLOAT")], ir.DataType.from_numpy(array.dtype)
        if wanted == found:
            return array
        if not (is_float(wanted) and is_float(found)):
            raise PassError(
                f"parameter {expression['parameter']!r} is {found.name.lower()} in the weights and "
                f"{wanted.name.lower()} in the graph; a pass that quantises one of them changes the type in both"
            )
        return self._halved(array, wanted) if wanted in HALVES else array.astype(wanted.numpy())

    def _halved(self, array: Array, dtype: ir.DataType) -> Array:
        half, lost = to_half(array, dtype)
        for kind, count in lost.items():
            self.lost[kind] = self.lost.get(kind, 0) + count
        return half

    def _of(self, expression: Expression) -> str:
        """Return what an expression is made of, or else what it derives."""
        return ", ".join(repr(name) for name, _ in parameters(expression)) or self.name


def is_float(dtype: ir.DataType) -> bool:
    """Tell whether a type is a float one, of whatever width; NumPy's own test does not know bfloat16."""
    return bool(dtype.is_floating_point())


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


def parts(expression: Expression, array: Array) -> Iterator[tuple[Expression, Array]]:
    """Take a derived weight apart: yield what each of its parameters became, and where in the weight that is.

    Raises `Irreversible` when an operator above them can't be undone.

    Args:
        expression: What the weight was derived by; above the expressions that have one parameter, only operators that
            move values.
        array: The weight's values, contiguous.

    Yields:
        Expressions of one parameter each, in the order of `parameters`, and views of `array`.
    """
    if len(list(parameters(expression))) == 1:
        yield expression, array
        return
    operands = expression.get("inputs", [])
    if expression.get("op") != "Concat":
        moved = _undo(expression, array)
        if not np.shares_memory(moved, array):
            raise Irreversible(expression["op"])
        yield from parts(operands[0], moved)
        return
    axis = expression["attributes"]["axis"]
    ends = np.cumsum([shape_of(operand)[axis] for operand in operands])
    for operand, piece in zip(operands, np.split(array, ends[:-1], axis), strict=True):
        yield from parts(operand, piece)


def undo(expression: Expression, array: Array) -> Array:
    """Return the values of the parameter that an expression of one became `array` by, but for their precision.

    Raises `Irreversible` when an operator does more than move values.
    """
    while "parameter" not in expression:
        array = _undo(expression, array)
        expression = expression["inputs"][0]
    return array


class Irreversible(Exception):  # noqa: N818  (callers say it in their own words)
    """An operator whose result does not tell what it was made of; its name is the message."""


def _undo(expression: Expression, array: Array) -> Array:
    """Return the first input of an operator that moves values, by its result; a view, where strides allow one."""
    match expression.get("op"):
        case "Cast" | "Identity":
            return array
        case "Transpose":
            order = expression.get("attributes", {}).get("perm", range(array.ndim)[::-1])
            return array.transpose(np.argsort(order))
        case "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten":
            return array.reshape(shape_of(expression["inputs"][0]))
    raise Irreversible(expression.get("op", "a constant"))


def shape_of(expression: Expression) -> tuple[int, ...]:
    """Return the shape of what `parts` and `undo` can take apart."""
    if "shape" in expression:
        return tuple(expression["shape"])
    operands = expression["inputs"]
    shape = shape_of(operands[0])
    match expression["op"]:
        case "Cast" | "Identity":
            return shape
        case "Transpose":
            order = expression.get("attributes", {}).get("perm", range(len(shape))[::-1])
            return tuple(shape[axis] for axis in order)
        case "Reshape":
            wanted = [shape[axis] if size == 0 else size for axis, size in enumerate(operands[1].get("constant", ()))]
            if wanted:
                return np.broadcast_to(np.False_, shape).reshape(wanted).shape
        case "Concat":
            axis = expression["attributes"]["axis"]
            sizes = [shape_of(operand)[axis] for operand in operands]
            return (*shape[:axis], sum(sizes), *shape[axis:][1:])
    raise Irreversible(expression["op"])


def _run(
    expression: Expression, operands: list[Array | None], opsets: Mapping[str, int], ir_version: int, name: str
) -> Array:
    """Run one operator by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    names = ["" if operand is None else f"in{i}" for i, operand in enumerate(operands)]
    outputs = [f"out{i}" for i in range(expression.get("output", 0) + 1)]
    node = onnx.helper.make_node(
        expression["op"], names, outputs, domain=expression.get("domain", ""), **expression.get("attributes", {})
    )
    feeds = {name: array for name, array in zip(names, operands, strict=True) if array is not None}
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    result = onnx.helper.make_empty_tensor_value_info(outputs[-1])
    graph = onnx.helper.make_graph([node], "derivation", inputs, [result])
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    single = onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    try:
        (array,) = ReferenceEvaluator(single).run([outputs[-1]], feeds)
    except NotImplementedError as error:
        raise PassError(f"can't derive {name!r}: no reference for operator {expression['op']!r}") from error
    return np.asarray(array)


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
