"""All chance in a picture: one torch generator on the CPU for each, as in diffusers' pipelines.

The order of draws is that of `StableDiffusionPipeline`, `…Img2ImgPipeline` and `…InpaintPipeline` with a list of
generators: sample of the encoded picture, initial noise, sample of the masked picture, then what each step draws.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from olivelike.runtime.pipeline.request import SEEDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """Return a generator on the CPU for each seed."""
    import torch

    return [torch.Generator("cpu").manual_seed(seed) for seed in seeds]


def draw(shape: tuple[int, ...], sources: Sequence[torch.Generator]) -> torch.Tensor:
    """Draw standard normal noise, each picture's from its own generator.

    Args:
        shape: of one picture: (channels, height, width).
        sources: a generator for each picture.

    Returns:
        Noise of shape (pictures, channels, height, width), float32, on the CPU.
    """
    import torch

    return torch.cat([torch.randn((1, *shape), generator=source) for source in sources])


def seed_of_attempt(seed: int, attempt: int) -> int:
    """Return the seed that a picture is drawn with when its first `attempt - 1` drawings were flagged."""
    if attempt == 1:
        return seed
    digest = hashlib.sha256(f"olivelike retry/{seed}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEEDS
