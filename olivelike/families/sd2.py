"""Stable Diffusion 2.x: https://huggingface.co/stabilityai/stable-diffusion-2-1."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from olivelike.families import sd1
from olivelike.families.family import HalfPolicy, Published, Shapes, TextPart

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.model.architecture import Architecture

_WIDTH: Final = 1024
_ATTENTION: Final = ("MultiHeadAttention", "Attention")


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del index, components
    return denoiser.get("cross_attention_dim") == _WIDTH


def _half(architecture: Architecture) -> HalfPolicy | None:
    """Keep attention in float32: it overflows float16, and pictures are black."""
    width = architecture.config.get("cross_attention_dim")
    widths = set(width) if isinstance(width, list | tuple) else {width}
    if architecture.class_name != "UNet2DConditionModel" or widths != {_WIDTH}:
        return None
    return HalfPolicy(operators=_ATTENTION, reason="attention of Stable Diffusion 2.x overflows float16")


def _matches(shapes: Shapes) -> str | None:
    linear = "label_emb.0.0.weight" not in shapes and sd1.has_linear_projections(shapes)
    return "through linear projections" if linear else None


FAMILY: Final = replace(
    sd1.FAMILY,
    name="sd2",
    title="Stable Diffusion 2.x",
    owns=_owns,
    texts=(
        TextPart(
            "text_encoder", "tokenizer", _WIDTH, stored="open_clip", prefix="cond_stage_model.model.", shortened=True
        ),
    ),
    # stabilityai/stable-diffusion-2-1 (v), stable-diffusion-2-1-base (epsilon), stable-diffusion-2-inpainting
    published=Published(
        sd1.INDEX,
        {"tokenizer": "pad_exclamation"},
        "PNDMScheduler",
        "sd2.json",
        head_width=64,
        changes={"v_prediction": {"sample_size": 96, "upcast_attention": True}},
    ),
    matches=_matches,
    half=_half,
    prediction="v_prediction",
)
