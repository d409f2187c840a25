"""MIGraphX for AMD GPUs, `rocm` by its older name.

AMD tests its parser up to opset 19, and it goes by operator names: 21 is what GroupNormalization and Gelu need.
"""

from __future__ import annotations

from typing import Final

from olivelike.model.targets.target import Kernel, Target

_FH: Final = frozenset("fh")
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
        "GroupNorm": Kernel(_FH, layouts=frozenset({"NHWC"})),
        "SkipLayerNormalization": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "GroupNormalization": Kernel(_FH, layouts=frozenset({"NCHW"})),
    },
    avoided=dict.fromkeys(
        ("Attention", "GroupNorm", "MultiHeadAttention", "SkipLayerNormalization"), _BETTER_ALONE
    ),
)
"""AMD GPUs on Linux."""
