"""Stable Diffusion 1.x: https://huggingface.co/stable-diffusion-v1-5/stable-diffusion-v1-5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from olivelike.families.family import Family, GuidanceInput, Latents, Sizes, TextPart

if TYPE_CHECKING:
    import torch

LATENTS: Final = Latents(
    channels=4,
    factor=8,
    scaling=0.18215,
    preview=(
        (0.3512, 0.2297, 0.3227),
        (0.3250, 0.4974, 0.2350),
        (-0.2829, 0.1762, 0.2721),
        (-0.2120, -0.2616, -0.7177),
    ),
)
GUIDES: Final = frozenset({"controlnet", "t2i_adapter", "ip_adapter"})
CACHES: Final = frozenset({"deepcache"})


def guidance_input(denoiser: Mapping[str, Any]) -> GuidanceInput | None:
    """Return the input for the guidance's embedding, which LCM's UNets have."""
    width = denoiser.get("time_cond_proj_dim")
    return GuidanceInput("timestep_cond", partial(embed_guidance, width=width)) if isinstance(width, int) else None


def embed_guidance(scale: float, width: int) -> torch.Tensor:
    """Return the embedding of a guidance scale that LCM's UNets take, of shape (1, width), float32.

    Sines and cosines of 1000 · (scale - 1), as of a timestep: https://arxiv.org/abs/2310.04378, section 4.3, with the
    frequencies of `LatentConsistencyModelPipeline.get_guidance_scale_embedding`.
    """
    import torch

    half = width // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10000.0) / (half - 1)))
    angles = (scale - 1) * 1000.0 * frequencies[None]
    return torch.nn.functional.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


FAMILY: Final = Family(
    name="sd1",
    title="Stable Diffusion 1.x",
    pipelines=("StableDiffusionPipeline", "StableDiffusionInpaintPipeline"),
    owns=lambda index, components, denoiser: False,  # noqa: ARG005  (it takes what no other owns)
    denoiser="unet",
    texts=(TextPart("text_encoder", "tokenizer", 768),),
    latents=LATENTS,
    sizes=Sizes(default=512, unit=64),
    widths=(320, 640, 1280, 1280),
    guidance_input=guidance_input,
    takes_masks=True,
    guides=GUIDES,
    caches=CACHES,
)
