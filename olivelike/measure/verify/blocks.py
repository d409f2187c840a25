"""How far the values in each block of a network reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from olivelike.engine.output.derivation import is_float
from olivelike.model.graph import block_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

_SINGLE = 4
"""Bytes of a float32; smaller types are widened, since NumPy finds no maximum of those that it does not know."""


class Reach:
    """Notes the largest absolute value that each block takes or gives, parameters included."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}
        """By block, in the order of the graph."""

    def observe(self, node: ir.Node, operands: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        """Look at one operator; values that are not finite, as in a mask, do not count."""
        block = block_of(node)
        if block is None:
            return
        values = [_largest(array) for array in (*operands, *outputs) if array is not None]
        self.largest[block] = max(self.largest.get(block, 0.0), *values)


def _largest(array: Array) -> float:
    if not is_float(ir.DataType.from_numpy(array.dtype)) or not array.size:
        return 0.0
    size = np.abs(array.astype(np.float32, copy=False) if array.dtype.itemsize < _SINGLE else array)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))
