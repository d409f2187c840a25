"""The CUDA provider: a kernel for every fusion, some for the widths of Stable Diffusion alone."""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

_FH: Final = frozenset("fh")
_FHB: Final = frozenset("fhb")
_FHBD: Final = frozenset("fhbd")
_NHWC: Final = frozenset({"NHWC"})

CUDA: Final = Target(
    "cuda",
    "CUDAExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FHB),
        "MultiHeadAttention": Kernel(_FHB, packed=True),
        "GroupNorm": Kernel(_FH, layouts=_NHWC, float32_inputs=(1, 2)),
        "SkipGroupNorm": Kernel(_FH, layouts=_NHWC, float32_inputs=(1, 2)),
        "SkipLayerNormalization": Kernel(_FHB),
        "LayerNormalization": Kernel(_FHBD),
        "BiasSplitGelu": Kernel(_FH, channels=frozenset({2560, 5120, 10240})),
        "BiasAdd": Kernel(_FH, channels=frozenset({320, 640, 1280})),
        "NhwcConv": Kernel(_FH, layouts=_NHWC),
        "BiasGelu": Kernel(_FHBD),
        "FastGelu": Kernel(_FHBD),
        "QuickGelu": Kernel(_FHBD),
        "ai.onnx.Attention": Kernel(_FHB),
        "GroupNormalization": Kernel(_FH, layouts=frozenset({"NCHW"})),
    },
)
"""NVIDIA GPUs."""
