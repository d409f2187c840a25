"""The refiner of Stable Diffusion XL: https://huggingface.co/stabilityai/stable-diffusion-xl-refiner-1.0."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from olivelike._untrusted import JsonView
from olivelike.families import sdxl
from olivelike.families.family import Published, Shapes, Sizes

_AESTHETIC_SCORES: Final = (6.0, 2.5)
"""For prompts and negative prompts, as diffusers' `StableDiffusionXLImg2ImgPipeline` has them."""


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del denoiser
    return sdxl.of_xl(index, components) and bool(index.get("requires_aesthetics_score"))


def _size_inputs(width: int, height: int) -> Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return original size, crop's corner and an aesthetic score."""
    prompts, negatives = ((height, width, 0, 0, score) for score in _AESTHETIC_SCORES)
    return {"time_ids": (prompts, negatives)}


def _matches(shapes: Shapes) -> str | None:
    levels = sdxl.levels_of(shapes)
    other = levels is not None and levels != len(sdxl.FAMILY.widths)
    return f"sizes of the picture, {levels} levels" if other else None


FAMILY: Final = replace(
    sdxl.FAMILY,
    name="sdxl_refiner",
    title="Stable Diffusion XL refiner",
    pipelines=("StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
    owns=_owns,
    texts=(replace(sdxl.SECOND_TEXT, prefix="conditioner.embedders.0.model."),),
    sizes=Sizes(default=1024, unit=64),
    widths=(384, 768, 1536, 1536),
    published=Published(
        {
            "force_zeros_for_empty_prompt": False,
            "requires_aesthetics_score": True,
            "text_encoder": [None, None],
            "tokenizer": [None, None],
        },
        {"tokenizer_2": "pad_exclamation"},
        "EulerDiscreteScheduler",
        "sdxl_refiner.json",
        head_width=64,
    ),
    matches=_matches,
    size_inputs=_size_inputs,
)
