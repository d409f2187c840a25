"""DirectML, the Windows provider for any GPU; its last release is onnxruntime-directml 1.24.4.

That release parses up to opset 25 and IR 13. But its kernels end at opset 21, and a runtime matches kernels by the
opset that an operator's form dates from: a graph stamped 22 or newer would leave each Conv to the CPU.
There is no kernel for ai.onnx GroupNormalization, Gelu and Attention: they run as their function bodies.
"""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

_FH: Final = frozenset("fh")
_BOTH: Final = frozenset({"NHWC", "NCHW"})

DIRECTML: Final = Target(
    "directml",
    "DmlExecutionProvider",
    opset=21,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FH),
        "MultiHeadAttention": Kernel(_FH, packed=True),
        "GroupNorm": Kernel(_FH, layouts=_BOTH),
        "SkipLayerNormalization": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasSplitGelu": Kernel(_FH),
        "BiasAdd": Kernel(_FH),
        "NhwcConv": Kernel(_FH, layouts=frozenset({"NHWC"})),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "QuickGelu": Kernel(_FH),
    },
)
"""Windows, any GPU with DirectX 12."""
