"""Targets: named execution providers with what their runtime reads and which precision they want.

Optimising needs no target hardware; everything that a pass asks about a target is data here, a table each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.model.targets.tables import CPU, CUDA, DIRECTML, MIGRAPHX, OPENVINO, TENSORRT, WEBGPU
from olivelike.model.targets.target import CONTRIB_DOMAIN, Kernel, Precision, Target

__all__ = ["ALIASES", "CONTRIB_DOMAIN", "TARGETS", "Kernel", "Precision", "Target", "find_target", "float32_inputs"]

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target for target in (CPU, OPENVINO, CUDA, TENSORRT, DIRECTML, MIGRAPHX, WEBGPU)
}
"""All targets by name."""

ALIASES: Final[Mapping[str, str]] = {
    "dml": "directml", "trt": "tensorrt", "nvidia": "cuda", "intel": "openvino", "rocm": "migraphx",
}  # fmt: skip
"""Other names, and the targets that they mean; the ROCm provider left ONNX Runtime in 1.23."""

_SEVERAL: Final[Mapping[str, str]] = {
    "gpu": "cuda (NVIDIA), directml (Windows), migraphx (AMD), openvino (Intel)",
    "amd": "directml (Windows), migraphx (Linux)",
}
"""Names that may mean several targets."""


def find_target(name: str) -> Target:
    """Return the target called `name`, or by another name of it.

    Raises:
        UsageError: for an unknown name; the message has the nearest known one.
    """
    target = TARGETS.get(ALIASES.get(name, name))
    if target is not None:
        return target
    if several := _SEVERAL.get(name.lower()):
        raise UsageError(f"{name!r} may mean several targets; say which: {several}")
    raise UsageError(f"unknown target {name!r}; {did_you_mean(name, [*TARGETS, *ALIASES], 'targets')}")


def float32_inputs(target: Target | None, op_type: str) -> frozenset[int]:
    """Return the positions of a fused operator's inputs that stay float32 in half precision on `target`."""
    kernel = None if target is None else target.kernels.get(op_type)
    return frozenset() if kernel is None else frozenset(kernel.float32_inputs)
