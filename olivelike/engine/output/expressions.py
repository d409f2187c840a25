"""How an initializer was derived from parameters, as a run records it: an expression that can be evaluated and undone.

An expression is `{"parameter": NAME, "shape": […]}`, `{"constant": VALUES, "dtype": …, "shape": […]}`, or an operator
`{"op": "Transpose", "attributes": {"perm": [1, 0]}, "inputs": […]}` with `domain` where that is not ONNX's own, and
`output` where it is not the first. `null` stands for an input that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from olivelike._untrusted import JsonView, one_line
from olivelike.errors import PassError, SourceError
from olivelike.model.finite_values import count_not_finite, is_float
from olivelike.model.graph import QUANTISE_DOMAIN
from olivelike.model.half_values import HALVES, to_half
from olivelike.model.onnx_messages import TYPE_NAMES, numpy_dtype, type_number
from olivelike.model.quantised_values import quantised_format

Array = np.ndarray[Any, Any]
Expression = JsonView

_FLOAT = TYPE_NAMES.index("FLOAT")
_HALF_BYTES = 2


@contextmanager
def followed(folder: Path) -> Iterator[None]:
    """Raise `SourceError` where expressions of a folder lead nowhere: strangers may have written its record."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SourceError(
            f"{folder}: what it says of how its weights were made can't be followed "
            f"({type(error).__name__}: {one_line(str(error))}); run the workflow again"
        ) from error


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
    if "parameter" in expression and not is_float(_dtype(expression)):
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
    place: Callable[[str], str] | None = None
    """Returns the file that holds a parameter, for messages."""

    def evaluate(self, expression: Expression) -> Array:
        """Return the values of an expression.

        Raises `PassError` when an operator has no reference implementation, a parameter is an integer in the weights
        and none in the graph, or the other way round, or a weight that is quantised is not finite.
        """
        if "parameter" in expression:
            return self._as_the_graph_takes(expression, self.parameter(expression["parameter"]))
        if "constant" in expression:
            values = np.array(expression["constant"], _dtype(expression))
            return values.reshape(expression["shape"])
        if expression.get("domain") == QUANTISE_DOMAIN:
            return self._quantised(expression)
        if expression["op"] == "Cast" and expression["attributes"]["to"] in HALVES:
            return self._halved(self._narrow(expression["inputs"][0])[0], expression["attributes"]["to"])
        operands = [None if operand is None else self.evaluate(operand) for operand in expression["inputs"]]
        if (moved := _moved(expression, operands)) is not None:
            return moved
        return _run(expression, operands, self.opsets, self.ir_version, self.name)

    def _quantised(self, expression: Expression) -> Array:
        weight, dtype = self._narrow(expression["inputs"][0])
        with np.errstate(invalid="ignore"):  # What NaN becomes as a whole number is refused below.
            found = quantised_format(expression).quantise(weight, dtype)
        if any(map(count_not_finite, found[1:])):
            reason = "too large for its scales; put its block into `float_blocks`"
            if count := count_not_finite(weight):
                reason = (
                    f"infinite or NaN ({count:,} of them); get the checkpoint again, or find the pass that made "
                    "them with `verify` in front"
                )
            raise PassError(f"weight {self._of(expression)} can't be quantised: it has values that are {reason}")
        self.others = found[1:]
        return found[expression.get("output", 0)]

    def _narrow(self, expression: Expression) -> tuple[Array, np.dtype[Any]]:
        """Return what `evaluate` does and its type, but for values in half precision that float32 was widened from."""
        if "parameter" in expression:
            array = self.parameter(expression["parameter"])
            if _dtype(expression) == np.float32 and is_float(array.dtype) and array.itemsize == _HALF_BYTES:
                return array, np.dtype(np.float32)
            array = self._as_the_graph_takes(expression, array)
        elif expression.get("op") in ("Identity", "Transpose") and "domain" not in expression:
            array, dtype = self._narrow(expression["inputs"][0])
            moved = _moved(expression, [array])
            assert moved is not None
            return moved, dtype
        else:
            array = self.evaluate(expression)
        return array, array.dtype

    def _as_the_graph_takes(self, expression: Expression, array: Array) -> Array:
        """Return a parameter's values in the type that the graph has it in; float types alone are converted."""
        wanted = _dtype(expression)
        if wanted == array.dtype:
            return array
        if not (is_float(wanted) and is_float(array.dtype)):
            raise PassError(
                f"parameter {expression['parameter']!r} is {_type_name(array.dtype)} in the weights and "
                f"{_type_name(wanted)} in the graph; a pass that quantises one of them changes the type in both"
            )
        number = type_number(wanted)
        return self._halved(array, number) if number in HALVES else array.astype(wanted)

    def _halved(self, array: Array, half: int) -> Array:
        if type_number(array.dtype) == half:  # As it is stored.
            return array
        halved, lost = to_half(array.astype(np.float32) if array.itemsize == _HALF_BYTES else array, half)
        for kind, count in lost.items():
            self.lost[kind] = self.lost.get(kind, 0) + count
        return halved

    def _of(self, expression: Expression) -> str:
        """Return what an expression is made of, or else what it derives."""
        names = [name for name, _ in parameters(expression)]
        held = dict.fromkeys(map(self.place, names)) if self.place is not None else {}
        return (", ".join(map(repr, names)) or self.name) + (f" (from {', '.join(held)})" if held else "")


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


def _dtype(expression: Expression) -> np.dtype[Any]:
    """Return the type of a constant, or of what a graph has for a parameter."""
    return numpy_dtype(TYPE_NAMES.index(expression.get("dtype", "FLOAT")))


def _type_name(dtype: np.dtype[Any]) -> str:
    return TYPE_NAMES[type_number(dtype)].lower()


def _moved(expression: Expression, operands: list[Array | None]) -> Array | None:
    """Return what an operator that only moves or widens values makes of them; `None` for any other operator."""
    array, attributes = operands[0], expression.get("attributes", {})
    if array is None or "domain" in expression:
        return None
    match expression["op"]:
        case "Identity":
            return array
        case "Cast" if attributes["to"] == _FLOAT:
            return array.astype(np.float32)
        case "Transpose":
            return array.transpose(attributes.get("perm"))
        case "Reshape" if operands[1] is not None and not attributes.get("allowzero"):
            sizes: list[int] = operands[1].tolist()
            return array.reshape([array.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])
    return None


def _run(
    expression: Expression, operands: list[Array | None], opsets: Mapping[str, int], ir_version: int, name: str
) -> Array:
    """Run one operator by ONNX's reference implementation."""
    import onnx
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
