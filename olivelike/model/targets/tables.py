"""All targets, each a table: what its runtime reads, and the fused operators that it has kernels for.

A test holds the table of the CPU against the installed runtime.
"""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

_F: Final = frozenset("f")
_FH: Final = frozenset("fh")
_FHB: Final = frozenset("fhb")
_FHBD: Final = frozenset("fhbd")
_NHWC: Final = frozenset({"NHWC"})
_NCHW: Final = frozenset({"NCHW"})

# The CPU provider; a test holds this table against the installed runtime.
#
# It has no kernel for GroupNormalization, which would run as its function body.
CPU: Final = Target(
    "cpu",
    "CPUExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp32",
    kernels={
        "Attention": Kernel(_F),
        "MultiHeadAttention": Kernel(_F),
        "SkipLayerNormalization": Kernel(_FHB),
        "LayerNormalization": Kernel(_FHBD),
        "BiasGelu": Kernel(_F),
        "FastGelu": Kernel(_F),
        "QuickGelu": Kernel(_F),
        "ai.onnx.Attention": Kernel(_FH),
    },
    avoided={"SkipLayerNormalization": "its CPU kernel is slower than Add and LayerNormalization apart"},
)
"""Any machine: ONNX Runtime's CPU provider."""

# The CUDA provider: a kernel for every fusion, some for the widths of Stable Diffusion alone.
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
        "GroupNormalization": Kernel(_FH, layouts=_NCHW),
    },
)
"""NVIDIA GPUs."""

# DirectML, the Windows provider for any GPU; its last release is onnxruntime-directml 1.24.4.
#
# That release parses up to opset 25 and IR 13. But its kernels end at opset 21, and a runtime matches kernels by the
# opset that an operator's form dates from: a graph stamped 22 or newer would leave each Conv to the CPU.
# There is no kernel for ai.onnx GroupNormalization, Gelu and Attention: they run as their function bodies.
DIRECTML: Final = Target(
    "directml",
    "DmlExecutionProvider",
    opset=21,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FH),
        "MultiHeadAttention": Kernel(_FH, packed=True),
        "GroupNorm": Kernel(_FH, layouts=_NHWC | _NCHW),
        "SkipLayerNormalization": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasSplitGelu": Kernel(_FH),
        "BiasAdd": Kernel(_FH),
        "NhwcConv": Kernel(_FH, layouts=_NHWC),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "QuickGelu": Kernel(_FH),
    },
)
"""Windows, any GPU with DirectX 12."""

# MIGraphX for AMD GPUs, `rocm` by its older name.
#
# AMD tests its parser up to opset 19, and it goes by operator names: 21 is what GroupNormalization and Gelu need.
_BETTER_ALONE: Final = "MIGraphX fuses this itself, and AMD's own recipe turns the fusion off"

MIGRAPHX: Final = Target(
    "migraphx",
    "MIGraphXExecutionProvider",
    opset=21,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FH),
        "MultiHeadAttention": Kernel(_FH),
        "GroupNorm": Kernel(_FH, layouts=_NHWC),
        "SkipLayerNormalization": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "GroupNormalization": Kernel(_FH, layouts=_NCHW),
    },
    avoided=dict.fromkeys(("Attention", "GroupNorm", "MultiHeadAttention", "SkipLayerNormalization"), _BETTER_ALONE),
)
"""AMD GPUs on Linux."""

# OpenVINO, through the `openvino` package, which reads standard operators and fuses by itself.
OPENVINO: Final = Target(
    "openvino",
    "OpenVINO",
    opset=23,
    ir_version=11,
    precision="fp32",
    kernels={
        "LayerNormalization": Kernel(_FHB),
        "GroupNormalization": Kernel(_FHB, layouts=_NCHW),
        "ai.onnx.Attention": Kernel(_FHB),
    },
    bfloat16=True,
)
"""Intel CPUs and GPUs; the runtime chooses its own inner precision."""

# TensorRT, which takes standard operators only and fuses by itself.
TENSORRT: Final = Target(
    "tensorrt",
    "TensorrtExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={"LayerNormalization": Kernel(_FH), "GroupNormalization": Kernel(_FH, layouts=_NCHW)},
)
"""NVIDIA GPUs, with engines built on first use."""

# WebGPU: browsers, and native GPUs through Dawn.
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
