"""Nodes written as Python writes sums: what schedulers, guidance and pixels are, between networks.

`OnnxArrays` has NumPy's names, so that formulas over an array interface write nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import onnx_ir as ir

_ENDS: Final = np.iinfo(np.int64).max
_INT64, _DOUBLE = ir.DataType.INT64, ir.DataType.DOUBLE


class Writer:
    """Appends nodes to one graph; constants are initializers of the outermost one, which its loops see."""

    def __init__(
        self, graph: ir.Graph, prefix: str, root: Writer | None = None, floats: type[np.floating[Any]] = np.float32
    ) -> None:
        """Write into `graph`.

        Args:
            graph: Where nodes go.
            prefix: What names begin with.
            root: The first writer of all, which has the constants.
            floats: Type of plain numbers in sums.
        """
        self.graph, self._prefix, self._floats = graph, prefix, floats
        self._root: Writer = root or self
        self.constants: dict[tuple[str, tuple[int, ...], bytes], Number] = {}
        self._written: dict[tuple[Any, ...], list[Number]] = {}
        self._count = 0

    def op(
        self, operator: str, *inputs: Number | ir.Value | None, name: str = "", outputs: int = 1, **attributes: Any
    ) -> Number:
        """Append a node; return its first output. `name` is what is shown if it fails."""
        return self.ops(operator, *inputs, name=name, outputs=outputs, **attributes)[0]

    def ops(
        self, operator: str, *inputs: Number | ir.Value | None, name: str = "", outputs: int = 1, **attributes: Any
    ) -> list[Number]:
        """Append a node, unless the same is there; return all of its outputs."""
        values = [one.value if isinstance(one, Number) else one for one in inputs]
        bodies = any(isinstance(one, ir.Attr) for one in attributes.values())
        key = (operator, *values, name, outputs, repr(attributes), self._count if bodies else None)
        if (known := self._written.get(key)) is not None:
            return known
        self._count += 1
        label = f"{self._prefix}{operator}.{self._count}"
        node = ir.node(
            operator, values, attributes, num_outputs=outputs, name=f"{self._prefix}{name}" if name else label
        )
        for place, output in enumerate(node.outputs):
            output.name = f"{label}.{place}"
        self.graph.append(node)
        self._written[key] = [Number(output, self) for output in node.outputs]
        return self._written[key]

    def constant(self, values: Any, dtype: Any = None) -> Number:
        """Return numbers, or texts where `dtype` is object, as an initializer; equal ones are one."""
        root = self._root
        array = np.asarray(values, dtype or self._floats)
        key = (array.dtype.str, array.shape, str(array).encode() if array.dtype == object else array.tobytes())
        if key not in root.constants:
            name = f"constant.{len(root.constants)}"
            if array.dtype == object:
                texts = [text.encode() for text in array.ravel()]
                tensor: ir.TensorProtocol = ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)
            else:
                tensor = ir.Tensor(array, name=name)
            value = ir.Value(name=name, shape=ir.Shape(array.shape), const_value=tensor)
            value.dtype = tensor.dtype
            root.graph.register_initializer(value)
            root.constants[key] = Number(value, root)
        return Number(root.constants[key].value, self)

    def integers(self, *values: int) -> Number:
        """Return whole numbers as a constant of rank 1: a shape, axes, or indices."""
        return self.constant(values, np.int64)

    def operand(self, value: Operand) -> Number:
        """Return a number or truth value as a constant; a value as it is."""
        if isinstance(value, Number):
            return value
        return self.constant(value, np.bool_ if isinstance(value, bool | np.bool_) else None)

    def here(self, value: Number | ir.Value) -> Number:
        """Return a value of this graph, or one around it, for sums in this one."""
        return Number(value.value if isinstance(value, Number) else value, self)

    def require(self, condition: Number, message: str) -> Number:
        """Return 0 of shape (1,); running fails, with the message as the node's name, where the condition is false.

        ONNX has no operator that refuses. An index beyond a tensor of one element is an error in every runtime, and
        ONNX Runtime's names the node.
        """
        index = self.op("Cast", self.op("Not", condition), to=ir.DataType.INT64)
        return self.op("Gather", self.integers(0), self.op("Reshape", index, self.integers(1)), name=message, axis=0)

    def stack(self, rows: Sequence[Number], axis: int = 0) -> Number:
        """Return values of one shape along a new axis."""
        return self.op("Concat", *(self.op("Unsqueeze", row, self.integers(axis)) for row in rows), axis=axis)

    def one_of(
        self, index: Number, choices: Sequence[Callable[[Writer], Sequence[Number]]], *, name: str
    ) -> list[Number]:
        """Return what one of several graphs gives, which alone is run.

        Args:
            index: Number of the one, int64 of shape (1,).
            choices: What writes each; all give as many values.
            name: What names of their nodes begin with, unlike those of others of this writer.
        """

        def written(first: int, last: int, path: str) -> Callable[[Writer], Sequence[Number]]:
            if last - first == 1:
                return choices[first]
            middle = (first + last) // 2
            halves = {"then_branch": (first, middle, f"{path}0"), "else_branch": (middle, last, f"{path}1")}

            def write(writer: Writer) -> Sequence[Number]:
                bodies: dict[str, Any] = {}
                many = 0
                for branch, half in halves.items():
                    prefix = f"{half[2]}/"
                    inner = Writer(ir.Graph([], [], nodes=[], name=prefix), prefix, self._root, self._floats)
                    found = written(*half)(inner)
                    # A value from around a graph can't be its output.
                    given = [inner.op("Identity", one, name=f"output {place}") for place, one in enumerate(found)]
                    inner.graph.outputs.extend(one.value for one in given)
                    bodies[branch], many = ir.AttrGraph(branch, inner.graph), len(given)
                is_before = writer.op("Less", writer.here(index), writer.integers(middle))
                return writer.ops("If", is_before, outputs=many, **bodies)

            return write

        return list(written(0, len(choices), f"{self._prefix}{name}.")(self))


Operand: TypeAlias = Any
"""A `Number`, or what NumPy takes for one."""


def _operator(name: str, *, swapped: bool = False, neutral: float | None = None) -> Callable[[Number, Operand], Number]:
    """Return a method of `Number`; with the neutral number on the other side it writes nothing."""

    def written(self: Number, other: Operand) -> Number:
        if neutral is not None and isinstance(other, int | float) and other == neutral:
            return self
        operand = self.writer.operand(other)
        return self.writer.op(name, *((operand, self) if swapped else (self, operand)))

    return written


@dataclass(frozen=True, eq=False)
class Number:
    """A value that sums are written with; plain numbers beside it are constants."""

    value: ir.Value
    writer: Writer

    __array_ufunc__: ClassVar[None] = None
    """NumPy leaves sums with its own numbers to this class."""

    __add__ = _operator("Add", neutral=0)
    __radd__ = _operator("Add", swapped=True, neutral=0)
    __sub__ = _operator("Sub", neutral=0)
    __rsub__ = _operator("Sub", swapped=True)
    __mul__ = _operator("Mul", neutral=1)
    __rmul__ = _operator("Mul", swapped=True, neutral=1)
    __truediv__ = _operator("Div", neutral=1)
    __rtruediv__ = _operator("Div", swapped=True)
    __pow__ = _operator("Pow", neutral=1)
    __ge__ = _operator("GreaterOrEqual")
    __le__ = _operator("LessOrEqual")
    __gt__ = _operator("Greater")
    __lt__ = _operator("Less")
    __and__ = _operator("And")
    __rand__ = _operator("And", swapped=True)
    __or__ = _operator("Or")
    __ror__ = _operator("Or", swapped=True)

    def __floordiv__(self, other: Operand) -> Number:
        quotient: Number = self / other
        return quotient.apply("Floor")

    def __rfloordiv__(self, other: float) -> Number:
        quotient: Number = other / self
        return quotient.apply("Floor")

    def __bool__(self) -> bool:
        raise TypeError("what a graph computes is not known while it is written")

    def __neg__(self) -> Number:
        return self.apply("Neg")

    def __invert__(self) -> Number:
        return self.apply("Not")

    def __getitem__(self, places: slice) -> Number:
        return self.slice(places.start or 0, _ENDS if places.stop is None else places.stop)

    def apply(self, operator: str, **attributes: Any) -> Number:
        """Return what an operator of one operand makes of it, such as `Sqrt`."""
        return self.writer.op(operator, self, **attributes)

    def cast(self, dtype: ir.DataType) -> Number:
        """Return it in another type."""
        return self.apply("Cast", to=dtype)

    def astype(self, dtype: Any) -> Number:
        """Return it in another type of NumPy's."""
        return self.cast(ir.DataType.from_numpy(np.dtype(dtype)))

    def where(self, yes: Operand, no: Operand) -> Number:
        """Return, where this truth value holds, one value, and the other elsewhere."""
        return self.writer.op("Where", self, self.writer.operand(yes), self.writer.operand(no))

    def at(self, index: Number, axis: int = 0) -> Number:
        """Return elements along an axis."""
        return self.writer.op("Gather", self, index, axis=axis)

    def slice(self, start: Number | int, end: Number | int = _ENDS, axis: int = 0) -> Number:
        """Return a part along an axis; numbers that are values have the shape (1,)."""
        places = [one if isinstance(one, Number) else self.writer.integers(one) for one in (start, end)]
        return self.writer.op("Slice", self, *places, self.writer.integers(axis))

    def size(self, axis: int) -> Number:
        """Return the size of an axis, int64 of shape (1,)."""
        return self.writer.op("Shape", self, start=axis, end=axis + 1)


def _unary(function: Callable[[Any], Any], operator: str) -> Callable[[OnnxArrays, Operand], Any]:
    def written(_: OnnxArrays, value: Operand) -> Any:
        return value.apply(operator) if isinstance(value, Number) else function(value)

    return written


def _binary(function: Callable[[Any, Any], Any], operator: str) -> Callable[[OnnxArrays, Operand, Operand], Any]:
    def written(self: OnnxArrays, one: Operand, other: Operand) -> Any:
        if isinstance(one, Number) or isinstance(other, Number):
            return self.writer.op(operator, self.writer.operand(one), self.writer.operand(other))
        return function(one, other)

    return written


@dataclass(frozen=True)
class OnnxArrays:
    """NumPy's names for sums of 64 bits in a graph; what is known already stays an array of NumPy."""

    writer: Writer

    asarray = staticmethod(np.asarray)
    zeros = staticmethod(np.zeros)
    sqrt, exp, log = _unary(np.sqrt, "Sqrt"), _unary(np.exp, "Exp"), _unary(np.log, "Log")
    floor, round = _unary(np.floor, "Floor"), _unary(np.round, "Round")
    sin, cos = _unary(np.sin, "Sin"), _unary(np.cos, "Cos")
    minimum, maximum = _binary(np.minimum, "Min"), _binary(np.maximum, "Max")

    def arange(self, many: Number) -> Number:
        """Return whole numbers from 0; `many` has the shape (1,)."""
        end = self.writer.op("Squeeze", many, self.writer.integers(0))
        return self.writer.op("Range", self.writer.constant(0.0), end, self.writer.constant(1.0))

    def where(self, condition: Number, yes: Operand, no: Operand) -> Operand:
        """Return one value where a condition holds, and the other elsewhere."""
        same = yes is no or (isinstance(yes, int | float) and isinstance(no, int | float) and yes == no)
        return yes if same else condition.where(yes, no)

    def concatenate(self, parts: Sequence[Operand]) -> Number:
        """Return arrays one behind the other."""
        return self.writer.op("Concat", *map(self.writer.operand, parts), axis=0)

    def stack(self, parts: Sequence[Number], axis: int) -> Number:
        """Return arrays of one shape along a new axis."""
        return self.writer.stack(parts, axis)

    def reshape(self, value: Number, shape: tuple[int, ...]) -> Number:
        """Return an array in another shape."""
        return self.writer.op("Reshape", value, self.writer.integers(*shape))

    def take(self, values: Operand, places: Number) -> Number:
        """Return the values at places."""
        return self.writer.operand(values).at(places)

    def argmin(self, values: Number) -> Number:
        """Return the place of the least value, of shape (1,)."""
        return self.writer.op("ArgMin", values, axis=0, keepdims=1).cast(_DOUBLE)

    def searchsorted(self, known: np.ndarray[Any, Any], sought: Number, side: str) -> Number:
        """Return how many of the known numbers, which rise, are at most each one that is sought."""
        assert side == "right"
        column = self.reshape(sought, (-1, 1))
        return self.writer.op("ReduceSum", (column >= known[None]).cast(_DOUBLE), self.writer.integers(1), keepdims=0)

    def float32(self, value: Operand) -> Any:
        """Return a number rounded to 32 bits."""
        if isinstance(value, Number):
            return value.cast(ir.DataType.FLOAT).cast(_DOUBLE)
        return float(np.float32(value))
