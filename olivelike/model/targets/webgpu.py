"""WebGPU: browsers, and native GPUs through Dawn."""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

_FH: Final = frozenset("fh")
_NHWC: Final = frozenset({"NHWC"})

WEBGPU: Final = Target(
    "webgpu",
    "WebGpuExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FH),
        "MultiHeadAttention": Kernel(_FH, causal=False),
        "GroupNorm": Kernel(_FH, layouts=_NHWC),
        "SkipGroupNorm": Kernel(_FH, layouts=_NHWC),
        "SkipLayerNormalization": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasSplitGelu": Kernel(_FH),
        "BiasAdd": Kernel(_FH),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "QuickGelu": Kernel(_FH),
    },
)
"""Browsers and native applications."""
