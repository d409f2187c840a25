"""Stable Diffusion 2.x: https://huggingface.co/stabilityai/stable-diffusion-2-1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from olivelike.families import sd1
from olivelike.families.family import HalfPolicy, TextPart

if TYPE_CHECKING:
    from olivelike.model.architecture import Architecture

_WIDTH: Final = 1024
_ATTENTION: Final = ("MultiHeadAttention", "Attention")


def _owns(index: Mapping[str, Any], components: Collection[str], denoiser: Mapping[str, Any]) -> bool:
    del index, components
    return denoiser.get("cross_attention_dim") == _WIDTH


def _half(architecture: Architecture) -> HalfPolicy | None:
    """Keep attention in float32: it overflows float16, and pictures are black."""
    width = architecture.config.get("cross_attention_dim")
    widths = set(width) if isinstance(width, list | tuple) else {width}
    if architecture.class_name != "UNet2DConditionModel" or widths != {_WIDTH}:
        return None
    return HalfPolicy(operators=_ATTENTION, reason="attention of Stable Diffusion 2.x overflows float16")


FAMILY: Final = replace(
    sd1.FAMILY,
    name="sd2",
    title="Stable Diffusion 2.x",
    owns=_owns,
    texts=(TextPart("text_encoder", "tokenizer", _WIDTH),),
    half=_half,
    prediction="v_prediction",
)
