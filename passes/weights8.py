"""`weights8`: keep weights in eight bits, with a scale for each block of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from olivelike.pass_api import Resources

from ._block_weights import BlockWeights


class Weights8(BlockWeights):
    """Keep weights in 8 bits, scale and zero point for each block; run it after all fusions and conversions."""

    conflicts: ClassVar = ("weights4",)
    resources: ClassVar = Resources(memory_bytes=400 << 20, weights_scale=0.27)

    block_size: Literal[16, 32, 64, 128, 256] = 256
    """Weights that share a scale; of a row that it does not divide, the largest part of it that does."""

    symmetric: bool = False
    """Without zero points; `k_quant` has them always."""

    float_blocks: tuple[str, ...] = ("conv_in", "conv_out", "*.conv_in", "*.conv_out")
    """Blocks whose weights stay as they are: module paths with wildcards, and what lies inside."""

    fine_blocks: tuple[str, ...] = (
        "time_embedding", "down_blocks.0", "down_blocks.1.downsamplers", "down_blocks.[12].attentions.*.proj_*",
        "down_blocks.1.attentions.*.attn1.to_[vo]*", "up_blocks.2.upsamplers", "up_blocks.2.attentions.*.proj_*",
        "up_blocks.2.attentions.*.attn1.to_[vo]*", "up_blocks.3", "down_blocks.*.conv_shortcut",
        "up_blocks.[12].*.conv_shortcut",
        "*coder.*samplers", "*coder.*.conv_shortcut",
        "encoder.down_blocks.[01]", "encoder.mid_block.attentions",
        "decoder.mid_block", "decoder.up_blocks.0.resnets.0", "decoder.up_blocks.[23]",
        "embeddings.position_embedding", "encoder.layers.[01].mlp", "encoder.layers.*.self_attn",
        "text_model.embeddings.position_embedding", "text_model.encoder.layers.[01].mlp",
        "text_model.encoder.layers.*.self_attn",
    )  # fmt: skip
    """Blocks whose weights have 12 bits, likewise: few weights with a large part in the error."""

    @property
    def bits(self) -> Literal[4, 8]:
        """Of a weight."""
        return 8
