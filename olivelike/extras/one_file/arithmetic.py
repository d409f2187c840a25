"""Nodes written as Python writes sums: what schedulers, guidance and pixels are, between networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir

_ENDS: Final = np.iinfo(np.int64).max


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
        self._count = 0

    def op(
        self, operator: str, *inputs: Number | ir.Value | None, name: str = "", outputs: int = 1, **attributes: Any
    ) -> Number:
        """Append a node; return its first output. `name` is what is shown if it fails."""
        return self.ops(operator, *inputs, name=name, outputs=outputs, **attributes)[0]

    def ops(
        self, operator: str, *inputs: Number | ir.Value | None, name: str = "", outputs: int = 1, **attributes: Any
    ) -> list[Number]:
        """Append a node; return all of its outputs."""
        self._count += 1
        label = f"{self._prefix}{operator}.{self._count}"
        values = [one.value if isinstance(one, Number) else one for one in inputs]
        node = ir.node(
            operator, values, attributes, num_outputs=outputs, name=f"{self._prefix}{name}" if name else label
        )
        for place, output in enumerate(node.outputs):
            output.name = f"{label}.{place}"
        self.graph.append(node)
        return [Number(output, self) for output in node.outputs]

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
                tensor = ir.tensor(array, name=name)
            value = ir.Value(name=name, shape=ir.Shape(array.shape), const_value=tensor)
            value.dtype = tensor.dtype
            root.graph.register_initializer(value)
            root.constants[key] = Number(value, root)
        return Number(root.constants[key].value, self)

    def integers(self, *values: int) -> Number:
        """Return whole numbers as a constant of rank 1: a shape, axes, or indices."""
        return self.constant(values, np.int64)

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

    def stack(self, rows: Sequence[Number]) -> Number:
        """Return values of one shape along a new first axis."""
        return self.op("Concat", *(self.op("Unsqueeze", row, self.integers(0)) for row in rows), axis=0)


@dataclass(frozen=True, eq=False)
class Number:
    """A value that sums are written with; plain numbers beside it are constants."""

    value: ir.Value
    writer: Writer

    def _with(self, operator: str, other: Number | float, *, swapped: bool = False) -> Number:
        operand = other if isinstance(other, Number) else self.writer.constant(other)
        return self.writer.op(operator, *((operand, self) if swapped else (self, operand)))

    def __add__(self, other: Number | float) -> Number:
        return self._with("Add", other)

    def __radd__(self, other: float) -> Number:
        return self._with("Add", other, swapped=True)

    def __sub__(self, other: Number | float) -> Number:
        return self._with("Sub", other)

    def __rsub__(self, other: float) -> Number:
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other: Number | float) -> Number:
        return self._with("Mul", other)

    def __rmul__(self, other: float) -> Number:
        return self._with("Mul", other, swapped=True)

    def __truediv__(self, other: Number | float) -> Number:
        return self._with("Div", other)

    def __rtruediv__(self, other: float) -> Number:
        return self._with("Div", other, swapped=True)

    def __neg__(self) -> Number:
        return self.writer.op("Neg", self)

    def __ge__(self, other: Number | float) -> Number:
        return self._with("GreaterOrEqual", other)

    def __le__(self, other: Number | float) -> Number:
        return self._with("LessOrEqual", other)

    def __gt__(self, other: Number | float) -> Number:
        return self._with("Greater", other)

    def apply(self, operator: str, **attributes: Any) -> Number:
        """Return what an operator of one operand makes of it, such as `Sqrt`."""
        return self.writer.op(operator, self, **attributes)

    def sqrt(self) -> Number:
        """Return the square root."""
        return self.apply("Sqrt")

    def cast(self, dtype: ir.DataType) -> Number:
        """Return it in another type."""
        return self.apply("Cast", to=dtype)

    def where(self, yes: Number | float, no: Number | float) -> Number:
        """Return, where this truth value holds, one value, and the other elsewhere."""
        either = [one if isinstance(one, Number) else self.writer.constant(one) for one in (yes, no)]
        return self.writer.op("Where", self, *either)

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
