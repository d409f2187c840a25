"""Stable Diffusion XL: https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from olivelike.families import sd1
from olivelike.families.family import (
    Family,
    HalfPolicy,
    LatentColours,
    Latents,
    Published,
    Shapes,
    Sizes,
    TextPart,
    TinyVae,
)

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.model.architecture import Architecture

SECOND_TEXT: Final = TextPart(
    "text_encoder_2",
    "tokenizer_2",
    1280,
    "CLIPTextModelWithProjection",
    "open_clip",
    "conditioner.embedders.1.model.",
    r"conditioner\.embedders\.(0\.model|1)\.|(.*\.)?clip_g\.|text_encoder_2\.",
    back=1,
    normed=False,
)
_WIDTHS: Final = (320, 640, 1280)
_TINY: Final = TinyVae(
    "TAESDXL",
    "madebyollin/taesdxl",
    "Stable Diffusion XL",
    # SHA-256 of its files, editions 1.0 to 1.2.
    (
        "55ef8e24c0ef92d7", "0932f0601474b5c4", "070a29bf19e745a5", "0af7e9e60c66873a",
        "aa0e5a3d8214d16f", "7f44a1aca487b462", "acbe3fbeb35834f8", "a01e74601dabfc23",
        "0070e0bf1b85d84c", "f6013131e7eb412e", "9f37c0b28f72ec4c", "8227ede61852f4e5",
    ),
)  # fmt: skip
LATENTS: Final = Latents(
    channels=4,
    factor=8,
    scaling=0.13025,
    colours=LatentColours(
        ((0.3920, 0.4054, 0.4549), (-0.2634, -0.0196, 0.0653), (0.0568, 0.1687, -0.0755), (-0.3112, -0.2359, -0.2076))
    ),
    tiny=_TINY,
)
ALIGNED_LEVELS: Final = (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029)


def of_xl(index: JsonView, components: Collection[str]) -> bool:
    """Tell whether a pipeline's denoiser takes a pooled text and numbers of the picture."""
    return "XL" in str(index.get("_class_name")) or SECOND_TEXT.component in components


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del denoiser
    return of_xl(index, components) and not index.get("requires_aesthetics_score")


def _half(architecture: Architecture) -> HalfPolicy | None:
    """Keep the VAE's decoder in float32 but for one that says `force_upcast: false`, as the float16-safe VAE does."""
    config = architecture.config
    if (
        architecture.component != "vae_decoder"
        or config.get("scaling_factor") != LATENTS.scaling
        or not config.get("force_upcast", True)
    ):
        return None
    return HalfPolicy(
        whole=True, reason="SDXL's VAE decoder overflows float16; a VAE with force_upcast: false does not"
    )


def _size_inputs(width: int, height: int) -> Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return original size, crop's corner and target size."""
    numbers = (height, width, 0, 0, height, width)
    return {"time_ids": (numbers, numbers)}


def levels_of(shapes: Shapes) -> int | None:
    """Return how many levels a denoiser has that takes numbers of the picture; `None` for another one."""
    labelled = "label_emb.0.0.weight" in shapes
    return 1 + sum(name.endswith(".0.op.weight") for name in shapes) if labelled else None


def _matches(shapes: Shapes) -> str | None:
    levels = levels_of(shapes)
    return f"sizes of the picture, {levels} levels" if levels == len(_WIDTHS) else None


FAMILY: Final = Family(
    name="sdxl",
    title="Stable Diffusion XL",
    pipelines=("StableDiffusionXLPipeline", "StableDiffusionXLInpaintPipeline"),
    owns=_owns,
    denoiser=sd1.FAMILY.denoiser,
    denoiser_class=sd1.FAMILY.denoiser_class,
    texts=(
        TextPart("text_encoder", "tokenizer", 768, prefix="conditioner.embedders.0.transformer.", back=1, normed=False),
        SECOND_TEXT,
    ),
    latents=LATENTS,
    aligned_levels=ALIGNED_LEVELS,
    sizes=Sizes(default=1024, unit=32),
    widths=_WIDTHS,
    published=Published(
        {"force_zeros_for_empty_prompt": True},
        {"tokenizer": "pad_end", "tokenizer_2": "pad_exclamation"},
        "EulerDiscreteScheduler",
        "sdxl.json",
        head_width=64,
    ),
    matches=_matches,
    half=_half,
    size_inputs=_size_inputs,
    takes_masks=True,
    zeros_for_no_text=True,
    lora_names={
        **sd1.LORA_NAMES,
        "text_encoder_2": (
            "te2",
            "text_encoder_2",
            "clip_g",
            "conditioner_embedders_0_model",
            "conditioner_embedders_1",
        ),
    },
    lora_layers=sd1.LORA_LAYERS,
    guides=sd1.GUIDES,
    caches=sd1.CACHES,
    blocks=sd1.BLOCKS,
)
