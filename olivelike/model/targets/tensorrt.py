"""TensorRT, which takes standard operators only and fuses by itself."""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

TENSORRT: Final = Target(
    "tensorrt",
    "TensorrtExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={
        "LayerNormalization": Kernel(frozenset("fh")),
        "GroupNormalization": Kernel(frozenset("fh"), layouts=frozenset({"NCHW"})),
    },
)
"""NVIDIA GPUs, with engines built on first use."""
