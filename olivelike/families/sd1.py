"""Stable Diffusion 1.x: https://huggingface.co/stable-diffusion-v1-5/stable-diffusion-v1-5."""

from __future__ import annotations

from typing import Final

from olivelike.families.family import (
    Blocks,
    Family,
    LatentColours,
    Latents,
    Published,
    Shapes,
    Sizes,
    TextPart,
    TinyVae,
)
from olivelike.model import guides

_TINY: Final = TinyVae(
    "TAESD",
    "madebyollin/taesd",
    "Stable Diffusion 1.x and 2.x",
    # SHA-256 of its files, editions 1.0 to 1.2.
    (
        "2183b8f7c963176b", "439a6d6ce5b2d358", "db7e613f897e3e1e", "62bda7018337cc26",
        "d7956d561b1efbd8", "7442e91c60df146a", "160d90c61c3a5ce5", "4dbe7a5f07de1045",
    ),
)  # fmt: skip
LATENTS: Final = Latents(
    channels=4,
    factor=8,
    scaling=0.18215,
    colours=LatentColours(
        ((0.3512, 0.2297, 0.3227), (0.3250, 0.4974, 0.2350), (-0.2829, 0.1762, 0.2721), (-0.2120, -0.2616, -0.7177))
    ),
    tiny=_TINY,
)
GUIDES: Final = frozenset(guides.GUIDES)
INDEX: Final = {"feature_extractor": [None, None], "requires_safety_checker": False, "safety_checker": [None, None]}
CACHES: Final = frozenset({"deepcache"})
_FLOAT: Final = ("conv_in", "conv_out", "*.conv_in", "*.conv_out")
# Those of the denoiser, of the VAE, and of text encoders.
BLOCKS: Final = {
    "weights8": Blocks(
        _FLOAT,
        (
            "time_embedding", "down_blocks.0", "down_blocks.1.downsamplers", "down_blocks.[12].attentions.*.proj_*",
            "down_blocks.1.attentions.*.attn1.to_[vo]*", "up_blocks.2.upsamplers", "up_blocks.2.attentions.*.proj_*",
            "up_blocks.2.attentions.*.attn1.to_[vo]*", "up_blocks.3", "down_blocks.*.conv_shortcut",
            "up_blocks.[12].*.conv_shortcut",
            "*coder.*samplers", "*coder.*.conv_shortcut", "encoder.down_blocks.[01]", "encoder.mid_block.attentions",
            "decoder.mid_block", "decoder.up_blocks.0.resnets.0", "decoder.up_blocks.[23]",
            "embeddings.position_embedding", "encoder.layers.[01].mlp", "encoder.layers.*.self_attn",
            "text_model.embeddings.position_embedding", "text_model.encoder.layers.[01].mlp",
            "text_model.encoder.layers.*.self_attn",
        ),
    ),
    "weights4": Blocks(
        (*_FLOAT, "time_embedding"),
        (
            "time_embedding", "down_blocks.0", "down_blocks.*.conv_shortcut", "down_blocks.1.attentions.*.proj_*",
            "up_blocks.2.attentions.*.proj_*", "up_blocks.[23].*.conv_shortcut", "up_blocks.3.attentions",
            "*coder.*.conv_shortcut", "*coder.*samplers", "encoder.down_blocks.0", "decoder.up_blocks.3",
            "decoder.mid_block.resnets.0",
            "encoder.layers.[0-3].self_attn", "text_model.encoder.layers.[0-3].self_attn",
            "embeddings.position_embedding", "text_model.embeddings.position_embedding",
        ),
    ),
    "int8": Blocks((*_FLOAT, "time_embedding", "*.time_emb_proj")),
}  # fmt: skip


def _matches(shapes: Shapes) -> str | None:
    plain = "label_emb.0.0.weight" not in shapes and not has_linear_projections(shapes)
    return "through convolution projections" if plain else None


def has_linear_projections(shapes: Shapes) -> bool:
    """Tell whether text enters the denoiser's transformers through linear layers."""
    return any(name.endswith(".proj_in.weight") and len(shape) == 2 for name, shape in shapes.items())


LORA_NAMES: Final = {
    "unet": ("unet", "diffusion_model"),
    "text_encoder": (
        "te", "te1", "text_encoder", "text_encoder_1", "cond_stage_model", "clip_l", "conditioner_embedders_0",
    ),
}  # fmt: skip
TRANSFORMER_NAMES: Final = ("transformer", *LORA_NAMES["unet"])
"""Words for a transformer in the names of a LoRA's tensors: kohya calls it a UNet, too."""
LORA_LAYERS: Final = {
    "unet": (
        "down_blocks", "mid_block", "up_blocks", "conv_in", "conv_out", "time_embedding", "add_embedding",
        "input_blocks", "middle_block", "output_blocks", "time_embed", "label_emb", "out",
    ),
    "text_encoder": ("text_model", "encoder_layers", "text_projection", "resblocks"),
}  # fmt: skip

FAMILY: Final = Family(
    name="sd1",
    title="Stable Diffusion 1.x",
    pipelines=("StableDiffusionPipeline", "StableDiffusionInpaintPipeline"),
    owns=lambda index, components, denoiser: False,  # noqa: ARG005  (it takes what no other owns)
    denoiser="unet",
    denoiser_class="UNet2DConditionModel",
    texts=(TextPart("text_encoder", "tokenizer", 768),),
    latents=LATENTS,
    sizes=Sizes(default=512, unit=64),
    widths=(320, 640, 1280, 1280),
    published=Published(INDEX, {"tokenizer": "pad_end"}, "PNDMScheduler", "sd1.json"),
    matches=_matches,
    takes_masks=True,
    lora_names=LORA_NAMES,
    lora_layers=LORA_LAYERS,
    guides=GUIDES,
    caches=CACHES,
    blocks=BLOCKS,
)
