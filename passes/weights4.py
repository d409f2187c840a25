"""`weights4`: keep weights in four bits, with a scale for each block of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from olivelike.pass_api import Resources

from ._block_weights import BlockWeights


class Weights4(BlockWeights):
    """Keep weights in 4 bits, scale and zero point for each block; run it after all fusions and conversions."""

    conflicts: ClassVar = ("weights8",)
    resources: ClassVar = Resources(memory_bytes=400 << 20, weights_scale=0.16)

    symmetric: bool = False
    """Without zero points; `k_quant` has them always."""

    @property
    def bits(self) -> Literal[4, 8]:
        """Of a weight."""
        return 4
