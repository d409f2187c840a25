"""The CPU provider; a test holds this table against the installed runtime.

It has no kernel for GroupNormalization, which would run as its function body.
"""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

_F: Final = frozenset("f")

CPU: Final = Target(
    "cpu",
    "CPUExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp32",
    kernels={
        "Attention": Kernel(_F),
        "MultiHeadAttention": Kernel(_F),
        "SkipLayerNormalization": Kernel(frozenset("fhb")),
        "LayerNormalization": Kernel(frozenset("fhdb")),
        "BiasGelu": Kernel(_F),
        "FastGelu": Kernel(_F),
        "QuickGelu": Kernel(_F),
        "ai.onnx.Attention": Kernel(frozenset("fh")),
    },
    avoided={"SkipLayerNormalization": "its CPU kernel is slower than Add and LayerNormalization apart"},
)
"""Any machine: ONNX Runtime's CPU provider."""
