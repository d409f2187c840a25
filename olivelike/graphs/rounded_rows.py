"""Activations rounded to 8 bits by rows, in the operators of a graph: for products of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from olivelike.graphs.editing.editor import GraphEditor
from olivelike.graphs.editing.values import Dims, dims_of

MIDDLE = 128
"""The number that stands for 0: ONNX Runtime is fast at uint8 by int8, not at int8 by int8."""
MOST = 127
REST = 1 / (2 * MOST)
"""Scale of what rounding leaves, at most half a step, as a part of the step."""
LEAST_STEP = 2.0**-100
"""Scale of a row of zeros."""


@dataclass(frozen=True)
class Piece:
    """Columns of what is rounded by rows."""

    value: ir.Value
    width: int
    factor: ir.Value | None = None
    """Factor of each row that the values are yet to be multiplied by."""


class RoundedRows:
    """Activations as uint8 with a scale for each row, which all products of them share."""

    def __init__(self, editor: GraphEditor, given: ir.Value, pieces: Sequence[Piece], before: ir.Node) -> None:
        """Add what rounds rows of a value, which its columns are given of, in front of the first node that reads them.

        Columns are rounded apart, and put beside each other as bytes.
        """
        self._editor, self._given, self._pieces = editor, given, pieces
        self._rest: ir.Value | None = None
        outer = dims_of(given)[:-1]
        self._rows: Dims = (outer[0] if len(outer) == 1 else None,)
        last, each = editor.shape_constant(-1), (*outer, 1)

        def spread(operator: str, *inputs: ir.Value) -> ir.Value:
            return self._add(operator, list(inputs), each, before)

        sizes = []
        for piece in pieces:  # Two readings are faster than a copy by Abs.
            most, least = (
                self._add(operator, [piece.value, last], each, before, keepdims=1)
                for operator in ("ReduceMax", "ReduceMin")
            )
            size = spread("Max", most, spread("Neg", least))
            sizes.append(size if piece.factor is None else spread("Mul", size, piece.factor))
        size = spread("Max", *sizes) if len(sizes) > 1 else sizes[0]
        step = spread("Mul", size, editor.constant(1 / MOST, np.float32))
        self.scales = spread("Max", step, editor.constant(LEAST_STEP, np.float32))
        """Scale of each row."""
        steps = [self.scales if one.factor is None else spread("Div", self.scales, one.factor) for one in pieces]
        self._steps = [self._add("Reshape", [step, last], self._rows, before) for step in steps]
        shape = self._add("Shape", [self._steps[0]], (1,), before, ir.DataType.INT64)
        middle = ir.tensor(np.array([MIDDLE], np.uint8))
        self._middles = self._add("ConstantOfShape", [shape], self._rows, before, ir.DataType.UINT8, value=middle)
        self._matrices, self._shapes = [], []
        for piece in pieces:
            value, places = piece.value, editor.shape_constant(-1, piece.width)
            self._matrices.append(self._add("Reshape", [value, places], (*self._rows, piece.width), before))
            self._shapes.append(self._add("Shape", [value], (len(outer) + 1,), before, ir.DataType.INT64))
        self._numbers = [
            self._quantised(matrix, step, before) for matrix, step in zip(self._matrices, self._steps, strict=True)
        ]
        self.numbers = self._together(self._numbers, before)
        """Values as bytes, in the shape of what is rounded; 128 stands for 0."""

    def rest(self, before: ir.Node) -> ir.Value:
        """Return what the numbers leave, as numbers of `REST` of their scale."""
        if self._rest is None:
            found = []
            for matrix, numbers, step in zip(self._matrices, self._numbers, self._steps, strict=True):
                dims = dims_of(matrix)
                inputs = [numbers, step, self._middles]
                wide = self._add("DequantizeLinear", inputs, dims, before, ir.DataType.FLOAT, axis=0)
                left = self._add("Sub", [matrix, wide], dims, before)
                finer = self._add("Mul", [step, self._editor.constant(REST, np.float32)], self._rows, before)
                found.append(self._quantised(left, finer, before))
            self._rest = self._together(found, before)
        return self._rest

    def _quantised(self, matrix: ir.Value, scales: ir.Value, before: ir.Node) -> ir.Value:
        inputs = [matrix, scales, self._middles]
        return self._add("QuantizeLinear", inputs, dims_of(matrix), before, ir.DataType.UINT8, axis=0)

    def _together(self, pieces: Sequence[ir.Value], before: ir.Node) -> ir.Value:
        """Return numbers of pieces in the shape of what is rounded."""
        dims = dims_of(self._given)
        found = [
            self._add("Reshape", [numbers, shape], (*dims[:-1], piece.width), before)
            for numbers, shape, piece in zip(pieces, self._shapes, self._pieces, strict=True)
        ]
        return self._add("Concat", found, dims, before, axis=-1) if len(found) > 1 else found[0]

    def _add(
        self, operator: str, inputs: list[ir.Value], dims: Dims, before: ir.Node, dtype: ir.DataType | None = None,
        **more: int | ir.TensorProtocol,
    ) -> ir.Value:  # fmt: skip
        name = f"{self._given.name}.{operator.lower()}"
        return self._editor.add(operator, inputs, dims, before=before, name=name, dtype=dtype, attributes=more or None)
