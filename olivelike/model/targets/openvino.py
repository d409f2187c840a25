"""OpenVINO, through the `openvino` package, which reads standard operators and fuses by itself."""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

OPENVINO: Final = Target(
    "openvino",
    "OpenVINO",
    opset=23,
    ir_version=11,
    precision="fp32",
    kernels={
        "LayerNormalization": Kernel(frozenset("fhb")),
        "GroupNormalization": Kernel(frozenset("fhb"), layouts=frozenset({"NCHW"})),
        "ai.onnx.Attention": Kernel(frozenset("fhb")),
    },
    bfloat16=True,
)
"""Intel CPUs and GPUs; the runtime chooses its own inner precision."""
