"""Telling quantised weights in a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir


def rounded_to(nodes: Iterable[ir.Node]) -> str | None:
    """Return `int8` or `fp8` if activations of a graph are rounded to that, else `None`."""
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            dtype = node.outputs[0].dtype
            return "fp8" if dtype is not None and dtype.is_floating_point() else "int8"
    return None


def weight_bits(node: ir.Node) -> int | None:
    """Return how many bits the weights have that an operator widens or multiplies by; `None` for any other operator."""
    if node.op_type == "MatMulNBits":
        return node.attributes["bits"].as_int()
    if node.op_type == "DequantizeLinear":
        value = node.inputs[0]
        return value.dtype.bitwidth if value is not None and value.dtype is not None else None
    return None
