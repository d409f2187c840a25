"""How meanings are stated: `Call` is the fused operator's node, `Body` writes the nodes of its function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError

if TYPE_CHECKING:
    from collections.abc import Mapping

Operand = ir.Value | float | Sequence[int]


class Body:
    """Collects nodes in order; `op.Add(x, 1.0)` writes an Add and returns its output.

    Numbers become float32 constants, sequences of integers int64 vectors. Operators keep to those whose form
    is the same from opset 17 on, so that a body can take the opset of the model that it is written for.
    """

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def __getattr__(self, op_type: str) -> Any:
        def write(*operands: Operand, **attributes: Any) -> ir.Value:
            return self.write(op_type, operands, attributes)[0]

        return write

    def write(
        self, op_type: str, operands: Sequence[Operand], attributes: Mapping[str, Any], outputs: int = 1
    ) -> Sequence[ir.Value]:
        """Append a node of the standard domain and return its outputs."""
        inputs = [
            operand if isinstance(operand, ir.Value) else self._constant(operand) for operand in operands
        ]
        return self._append(op_type, inputs, attributes, outputs)

    def float32(self, value: ir.Value) -> ir.Value:
        """Return `value` as float32, in which every statement computes, as the kernels accumulate in it."""
        result: ir.Value = self.Cast(value, to=int(ir.DataType.FLOAT))
        return result

    def dimension(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of one axis, as an int64 vector of one element."""
        result: ir.Value = self.Shape(value, start=axis, end=axis + 1)
        return result

    def _constant(self, number: float | Sequence[int]) -> ir.Value:
        dtype = np.float32 if isinstance(number, float) else np.int64
        return self._append("Constant", [], {"value": ir.tensor(np.array(number, dtype))}, 1)[0]

    def _append(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], outputs: int
    ) -> Sequence[ir.Value]:
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs)
        for index, value in enumerate(node.outputs):
            value.name = f"{op_type}_{len(self.nodes)}_{index}"
        self.nodes.append(node)
        return node.outputs


@dataclass(frozen=True)
class Call:
    """A node's attributes, and the function inputs that stand for its operands."""

    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    """One per operand of the node; `None` where an optional one is absent."""

    def required(self, *names: str) -> tuple[ir.Value, ...]:
        """Return the first operands, which the schema calls `names` and never lets be absent."""
        values = self.inputs[: len(names)]
        present = tuple(value for value in values if value is not None)
        if len(present) != len(names):
            raise self.unstated(f"it needs the inputs {', '.join(names)}")
        return present

    def optional(self, index: int) -> ir.Value | None:
        """Return the operand at `index`, or `None` if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def rank(self, index: int) -> int | None:
        """Return the number of axes of the operand at `index`, or `None` if the graph does not say."""
        value = self.node.inputs[index]
        return None if value is None or value.shape is None else len(value.shape)

    def forbid(self, **positions: int) -> None:
        """Refuse operands that no Stable Diffusion network has: their meaning is not stated here."""
        for name, index in positions.items():
            if self.optional(index) is not None:
                raise self.unstated(f"the input {name} has no stated meaning")

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute, or `default`."""
        return self.node.attributes[name].as_int() if name in self.node.attributes else default

    def number(self, name: str, default: float) -> float:
        """Return a float attribute, or `default`."""
        return self.node.attributes[name].as_float() if name in self.node.attributes else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or `None`."""
        return tuple(self.node.attributes[name].as_ints()) if name in self.node.attributes else None

    def unstated(self, reason: str) -> PassError:
        """Return the error for a form of the operator that has no statement."""
        return PassError(f"{self.node.op_type} {self.node.name!r}: {reason}")
