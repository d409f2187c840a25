"""The inputs of a layer that takes factors: their names, shapes and sizes, and what they are as one pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.values import dims_of
from olivelike.model.low_rank_inputs import DOWN, UP, factor_input

if TYPE_CHECKING:
    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.editing.values import Dims

CONVOLUTIONS: Final = ("Conv", "NhwcConv")
MATRIX: Final = 2
"""Axes of a matrix."""


@dataclass(frozen=True)
class Factors:
    """Inputs of a layer, by LoRA, and the strengths."""

    name: str
    downs: tuple[ir.Value, ...]
    ups: tuple[ir.Value, ...]
    scales: Sequence[ir.Value]
    down_axis: int
    """Axis of the rank."""
    up_axis: int

    def joined(self, editor: GraphEditor, before: ir.Node) -> tuple[ir.Value, ir.Value]:
        """Return the factors of all LoRAs as one pair, of which the smaller factor is by strength."""
        scales_down = _numbers(self.downs[0]) < _numbers(self.ups[0])
        down, up = (
            self._one(editor, factor, values, axis, before, is_scaled=is_scaled)
            for factor, values, axis, is_scaled in (
                (DOWN, self.downs, self.down_axis, scales_down), (UP, self.ups, self.up_axis, not scales_down)
            )
        )  # fmt: skip
        return down, up

    def _one(
        self, editor: GraphEditor, factor: str, values: Sequence[ir.Value], axis: int, before: ir.Node,
        *, is_scaled: bool,
    ) -> ir.Value:  # fmt: skip
        if is_scaled:
            values = [
                editor.add("Mul", [one, scale], dims_of(one), before=before, name=f"{one.name}.scaled")
                for one, scale in zip(values, self.scales, strict=True)
            ]
        if len(values) == 1:
            return values[0]
        name = f"{self.name}.{factor}"
        return editor.add("Concat", values, dims_of(values[0]), before=before, name=name, attributes={"axis": axis})


def _numbers(factor: ir.Value) -> int:
    """Return how many numbers a factor has for each of its rank."""
    return math.prod(dim for dim in dims_of(factor) if isinstance(dim, int))


def add_factors(editor: GraphEditor, name: str, node: ir.Node, scales: Sequence[ir.Value]) -> Factors:
    """Give the layer of a weight inputs for its factors, of rank 0 where they are not fed."""
    down_shape, down_axis, up_shape, up_axis = _shapes(node)
    dtype = dtype_of(node).numpy()
    downs, ups = (
        tuple(
            add_input(editor, factor_input(slot, name, factor), _ranked(shape, axis), np.zeros(shape, dtype))
            for slot in range(len(scales))
        )
        for factor, shape, axis in ((DOWN, down_shape, down_axis), (UP, up_shape, up_axis))
    )
    return Factors(name, downs, ups, scales, down_axis, up_axis)


def add_input(editor: GraphEditor, name: str, shape: Dims, default: np.ndarray[Any, Any]) -> ir.Value:
    """Return a new input, with a value for who does not feed it."""
    value = editor.value(name, shape, ir.DataType.from_numpy(default.dtype))
    value.const_value = ir.tensor(default, name=value.name)
    editor.graph.inputs.append(value)
    editor.graph.register_initializer(value)
    return value


Layers: TypeAlias = list[tuple[ir.Node, Factors]]
"""Products, and what their weights take."""


def dtype_of(node: ir.Node) -> ir.DataType:
    """Return the type that a layer computes in: that of what it makes."""
    return next((value.dtype for value in (*node.outputs, node.inputs[0]) if value and value.dtype), ir.DataType.FLOAT)


def taken_by(node: ir.Node) -> ir.Value:
    """Return what a layer multiplies by its weight."""
    taken = node.inputs[0]
    assert taken is not None
    return taken


def features_of(node: ir.Node) -> tuple[int, int]:
    """Return the features that a product takes and makes."""
    if node.op_type == "MatMulNBits":
        return node.attributes["K"].as_int(), node.attributes["N"].as_int()
    weight = node.inputs[1]
    assert weight is not None
    dims = dims_of(weight)
    if len(dims) != MATRIX or not all(isinstance(dim, int) for dim in dims):
        raise PassError(f"the layer {weight.name!r} has a weight of unknown size; leave it out of `layers`")
    taken, made = (int(dim) for dim in dims if isinstance(dim, int))
    is_turned = "transB" in node.attributes and node.attributes["transB"].as_int() == 1
    return (made, taken) if is_turned else (taken, made)


def unknown(value: ir.Value) -> Dims:
    """Return a shape of the same rank of which nothing else is known: memory is not planned by it."""
    return (None,) * len(dims_of(value))


def _shapes(node: ir.Node) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
    """Return the shape of `down` of rank 0 and the axis of the rank, and those of `up`."""
    if node.op_type not in CONVOLUTIONS:
        taken, made = features_of(node)
        return (taken, 0), 1, (0, made), 0
    weight = node.inputs[1]
    assert weight is not None
    made, *inner = (int(dim) for dim in dims_of(weight) if isinstance(dim, int))
    last = node.op_type == "NhwcConv"
    return (0, *inner), 0, (made, 1, 1, 0) if last else (made, 0, 1, 1), 3 if last else 1


def _ranked(shape: Sequence[int], axis: int) -> Dims:
    return tuple(None if index == axis else size for index, size in enumerate(shape))
