"""`weights4`: keep weights in four bits, with a scale for each block of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from olivelike.pass_api import Resources

from ._block_weights import BlockWeights


class Weights4(BlockWeights):
    """Keep weights in 4 bits, scale and zero point for each block; run it after all fusions and conversions."""

    conflicts: ClassVar = ("weights8",)
    resources: ClassVar = Resources(memory_bytes=400 << 20, weights_scale=0.16)

    block_size: Literal[16, 32, 64, 128, 256] = 64
    """Weights that share a scale; of a row that it does not divide, the largest part of it that does."""

    symmetric: bool = False
    """Without zero points; `k_quant` has them always."""

    float_blocks: tuple[str, ...] = ("conv_in", "conv_out", "*.conv_in", "*.conv_out", "time_embedding")
    """Blocks whose weights stay as they are: module paths with wildcards, and what lies inside."""

    fine_blocks: tuple[str, ...] = (
        "time_embedding", "down_blocks.0", "down_blocks.*.conv_shortcut", "down_blocks.1.attentions.*.proj_*",
        "up_blocks.2.attentions.*.proj_*", "up_blocks.[23].*.conv_shortcut", "up_blocks.3.attentions",
        "*coder.*.conv_shortcut", "*coder.*samplers", "encoder.down_blocks.0", "decoder.up_blocks.3",
        "decoder.mid_block.resnets.0", "encoder.layers.[0-3].self_attn", "text_model.encoder.layers.[0-3].self_attn",
        "embeddings.position_embedding", "text_model.embeddings.position_embedding",
    )  # fmt: skip
    """Blocks whose weights have 8 bits, likewise: few weights with a large part in the error."""

    @property
    def bits(self) -> Literal[4, 8]:
        """Of a weight."""
        return 4
