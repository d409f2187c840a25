"""`weights8`: keep weights in eight bits, with a scale for each block of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from olivelike.pass_api import Resources

from ._block_weights import BlockWeights


class Weights8(BlockWeights):
    """Keep weights in 8 bits, a scale for each block; run it after all fusions and conversions."""

    conflicts: ClassVar = ("weights4",)
    resources: ClassVar = Resources(memory_bytes=400 << 20, weights_scale=0.27)

    block_size: Literal[16, 32, 64, 128, 256] = 128
    """Weights that share a scale; of a row that it does not divide, the largest part of it that does."""

    symmetric: bool = True
    """Without zero points; `k_quant` has them always."""

    float_blocks: tuple[str, ...] = ("conv_in", "conv_out", "*.conv_in", "*.conv_out")
    """Blocks whose weights stay as they are: module paths with wildcards, and what lies inside."""

    @property
    def bits(self) -> Literal[4, 8]:
        """Of a weight."""
        return 8
