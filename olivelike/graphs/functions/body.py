"""`Body`: writes the nodes of a model-local function, one call per operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

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
