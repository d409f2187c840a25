"""Say what an ONNX file holds and what a target would make of it, without reading weights."""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.graphs.inspect.inspection import DataFile, Inspection, TensorInfo, inspect_model
    from olivelike.graphs.inspect.placement import LeftNode, left_to_cpu

__all__ = ["DataFile", "Inspection", "LeftNode", "TensorInfo", "inspect_model", "left_to_cpu"]

__getattr__ = names_from(__name__, __file__)
