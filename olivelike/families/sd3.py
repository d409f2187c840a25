"""Stable Diffusion 3 and 3.5: https://huggingface.co/stabilityai/stable-diffusion-3.5-medium."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from olivelike._untrusted import JsonView
from olivelike.families import sd1
from olivelike.families.family import (
    T5_LAYERS,
    T5_PREFIXES,
    T5_STREAMS,
    Family,
    LatentColours,
    Latents,
    Published,
    Sizes,
    TextPart,
    blocks_of_transformer,
)

_T5: Final = TextPart(
    "text_encoder_3", "tokenizer_3", 4096, "T5EncoderModel", "t5", "text_encoders.t5xxl.transformer.", T5_PREFIXES,
    kind="t5", length=256, optional=True,
)  # fmt: skip
_CLIP_G: Final = TextPart(
    "text_encoder_2", "tokenizer_2", 1280, "CLIPTextModelWithProjection", "clip", "text_encoders.clip_g.transformer.",
    r"(.*\.)?clip_g\.", back=1, normed=False,
)  # fmt: skip


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del components
    return "StableDiffusion3" in str(index.get("_class_name")) or "caption_projection_dim" in denoiser


_COLOURS: Final = LatentColours(
    (
        (-0.0922, -0.0175, 0.0749), (0.0311, 0.0633, 0.0954), (0.1994, 0.0927, 0.0458), (0.0856, 0.0339, 0.0902),
        (0.0587, 0.0272, -0.0496), (-0.0006, 0.1104, 0.0309), (0.0978, 0.0306, 0.0427), (-0.0042, 0.1038, 0.1358),
        (-0.0194, 0.0020, 0.0669), (-0.0488, 0.0130, -0.0268), (0.0922, 0.0988, 0.0951), (-0.0278, 0.0524, -0.0542),
        (0.0332, 0.0456, 0.0895), (-0.0069, -0.0030, -0.0810), (-0.0596, -0.0465, -0.0293), (-0.1448, -0.1463, -0.1189),
    ),
    (0.2394, 0.2135, 0.1925),
)  # fmt: skip
"""Of its VAE."""
FAMILY: Final = Family(
    name="sd3",
    title="Stable Diffusion 3",
    pipelines=("StableDiffusion3Pipeline", "StableDiffusion3InpaintPipeline"),
    owns=_owns,
    denoiser="transformer",
    denoiser_class="SD3Transformer2DModel",
    texts=(
        # https://github.com/Stability-AI/sd3-ref (`sd3_infer.py`): CLIP-L has `return_projected_pooled=False`.
        TextPart(
            "text_encoder", "tokenizer", 768, "CLIPTextModelWithProjection", back=1, normed=False, unprojected=True
        ),
        _CLIP_G,
        _T5,
    ),
    latents=Latents(channels=16, factor=8, scaling=1.5305, shift=0.0609, colours=_COLOURS),
    sizes=Sizes(default=1024, unit=16),
    widths=(),
    published=Published(
        {},
        {"tokenizer": "pad_end", "tokenizer_2": "pad_exclamation", "tokenizer_3": "t5"},
        "FlowMatchEulerDiscreteScheduler",
        "sd3.json",
        head_width=64,
        flow=lambda denoiser: "flow_shift_3",  # noqa: ARG005
    ),
    matches=lambda shapes: None,  # noqa: ARG005
    steps=28,
    guidance=7.0,
    text_key="",
    sample="hidden_states",
    streams=T5_STREAMS,
    blocks=blocks_of_transformer(("time_text_embed", "norm_out", "proj_out")),
    unread=("joint_blocks.0.", "joint_blocks_0_", "text_encoders.clip_g.", "transformer_blocks.0.norm1_context."),
    lora_names={
        "transformer": sd1.TRANSFORMER_NAMES,
        "text_encoder": sd1.LORA_NAMES["text_encoder"],
        "text_encoder_2": ("te2", "text_encoder_2", "clip_g"),
        "text_encoder_3": ("te3", "text_encoder_3"),
    },
    lora_layers={
        "text_encoder": sd1.LORA_LAYERS["text_encoder"],
        "text_encoder_2": sd1.LORA_LAYERS["text_encoder"],
        "text_encoder_3": T5_LAYERS,
    },
)
