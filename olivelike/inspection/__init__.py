"""Say what an ONNX file holds and what a target would make of it, without reading weights."""

from typing import TYPE_CHECKING

from olivelike.lazy import names_from

if TYPE_CHECKING:
    from olivelike.inspection.inspect import inspect_model
    from olivelike.inspection.placement import LeftNode, left_to_cpu
    from olivelike.inspection.report import DataFile, Inspection, TensorInfo

__all__ = ["DataFile", "Inspection", "LeftNode", "TensorInfo", "inspect_model", "left_to_cpu"]

__getattr__ = names_from(
    __name__,
    {
        "inspect": ("inspect_model",),
        "placement": ("LeftNode", "left_to_cpu"),
        "report": ("DataFile", "Inspection", "TensorInfo"),
    },
)
