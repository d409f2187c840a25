"""Say what an ONNX file holds and what a target would make of it, without reading weights."""

from olivelike.inspection.inspect import inspect_model
from olivelike.inspection.placement import LeftNode, left_to_cpu
from olivelike.inspection.report import DataFile, Inspection, TensorInfo

__all__ = ["DataFile", "Inspection", "LeftNode", "TensorInfo", "inspect_model", "left_to_cpu"]
