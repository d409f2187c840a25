"""What the installed runtimes read: versions, highest opset and IR version, providers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from olivelike.runtime.sessions.session_failures import onnxruntime_errors

if TYPE_CHECKING:
    from collections.abc import Callable

_FATAL = 4
_SEARCHED_UP_TO = 256


@dataclass(frozen=True)
class RuntimeOffer:
    """One installed engine."""

    name: str
    version: str
    opset: int | None
    """Highest opset of `ai.onnx` that it reads; `None` where it goes by operators."""
    ir_version: int | None
    """Highest IR version that it reads; `None` where it does not look."""
    providers: tuple[str, ...]
    """Execution providers, or devices of OpenVINO."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        limits = [
            f"{what} up to {highest}"
            for what, highest in (("opset", self.opset), ("IR version", self.ir_version))
            if highest is not None
        ]
        return f"{self.name} {self.version}: {', '.join([*limits, *self.providers])}"


def installed_offers() -> tuple[RuntimeOffer, ...]:
    """Return what ONNX Runtime offers here, and OpenVINO if it is installed."""
    openvino = openvino_offer()
    return (onnxruntime_offer(), *([openvino] if openvino else []))


@lru_cache
def onnxruntime_offer() -> RuntimeOffer:
    """Return what ONNX Runtime offers, found by opening models of one node: its own tables are not public."""
    import onnxruntime

    return RuntimeOffer(
        "ONNX Runtime",
        onnxruntime.__version__,
        _highest(lambda opset: _opens(opset, 8)),
        _highest(lambda ir_version: _opens(17, ir_version)),
        tuple(onnxruntime.get_available_providers()),
    )


@lru_cache
def openvino_offer() -> RuntimeOffer | None:
    """Return what OpenVINO offers; `None` if it is not installed."""
    try:
        found = version("openvino")
    except PackageNotFoundError:
        return None
    import importlib

    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    return RuntimeOffer("OpenVINO", found, None, None, tuple(openvino.Core().available_devices))


def _highest(opens: Callable[[int], bool]) -> int:
    """Return the last number that `opens`, given that 8 does and that there are no gaps."""
    low, high = 8, _SEARCHED_UP_TO
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if opens(middle) else (low, middle)
    return low


def _opens(opset: int, ir_version: int) -> bool:
    import onnxruntime
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "probe", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except onnxruntime_errors():
        return False
    return True
