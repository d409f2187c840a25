"""Targets: named execution providers with what their runtime reads and which precision they want.

Optimising needs no target hardware; everything that a pass asks about a target is data here.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from olivelike.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Precision = Literal["fp32", "fp16"]


@dataclass(frozen=True)
class Target:
    """One execution provider and what decides how a graph is lowered for it."""

    name: str
    provider: str
    """Execution provider as ONNX Runtime names it; `OpenVINO` means the `openvino` package itself."""
    opset: int
    """Highest `ai.onnx` opset that the target's runtime reads."""
    ir_version: int
    """Highest ONNX IR version that it reads."""
    precision: Precision
    """The precision that shipped workflows choose for it."""
    device_id: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Provider options, passed to the session as they are."""

    def facts(self) -> dict[str, Any]:
        """Return what may change a pass's result, as JSON: everything but device and session options."""
        facts = asdict(self)
        del facts["device_id"], facts["options"]
        return facts


# onnxruntime-directml stands at 1.24, which reads opset 24 and IR 11; 1.31 reads opset 24 officially and IR 12.
TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        Target("cpu", "CPUExecutionProvider", 23, 11, "fp32"),
        Target("openvino", "OpenVINO", 23, 11, "fp32"),
        Target("cuda", "CUDAExecutionProvider", 23, 11, "fp16"),
        Target("tensorrt", "TensorrtExecutionProvider", 23, 11, "fp16"),
        Target("directml", "DmlExecutionProvider", 23, 11, "fp16"),
        Target("migraphx", "MIGraphXExecutionProvider", 23, 11, "fp16"),
        Target("webgpu", "WebGpuExecutionProvider", 23, 11, "fp16"),
    )
}
"""All targets by name."""

ALIASES: Final[Mapping[str, str]] = {"rocm": "migraphx"}
"""Older names; the ROCm provider left ONNX Runtime in 1.23."""


def find_target(name: str) -> Target:
    """Return the target called `name`, or by an older name of it.

    Raises:
        UsageError: for an unknown name; the message has the nearest known one.
    """
    target = TARGETS.get(ALIASES.get(name, name))
    if target is not None:
        return target
    nearest = difflib.get_close_matches(name, [*TARGETS, *ALIASES], n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known targets: {', '.join(TARGETS)}"
    raise UsageError(f"unknown target {name!r}; {hint}")
