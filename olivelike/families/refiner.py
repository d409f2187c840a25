"""The refiner of Stable Diffusion XL: https://huggingface.co/stabilityai/stable-diffusion-xl-refiner-1.0."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from olivelike.families import sdxl
from olivelike.families.family import Sizes

_AESTHETIC_SCORES: Final = (6.0, 2.5)
"""For prompts and negative prompts, as diffusers' `StableDiffusionXLImg2ImgPipeline` has them."""


def _owns(index: Mapping[str, Any], components: Collection[str], denoiser: Mapping[str, Any]) -> bool:
    del denoiser
    return sdxl.of_xl(index, components) and bool(index.get("requires_aesthetics_score"))


def _size_inputs(width: int, height: int) -> Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return original size, crop's corner and an aesthetic score."""
    prompts, negatives = ((height, width, 0, 0, score) for score in _AESTHETIC_SCORES)
    return {"time_ids": (prompts, negatives)}


FAMILY: Final = replace(
    sdxl.FAMILY,
    name="sdxl_refiner",
    title="Stable Diffusion XL refiner",
    pipelines=("StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
    owns=_owns,
    texts=(sdxl.SECOND_TEXT,),
    sizes=Sizes(default=1024, unit=64),
    widths=(384, 768, 1536, 1536),
    size_inputs=_size_inputs,
)
