"""A batch in the making: its scheduler, and all chance in it, fresh for each.

Each picture has a torch generator on the CPU. The order of draws is that of diffusers' `StableDiffusionPipeline`,
`…Img2ImgPipeline` and `…InpaintPipeline` with a list of generators: sample of the encoded picture, initial noise,
sample of the masked picture, then what each step draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.errors import UsageError
from olivelike.runtime.pipeline.request import SEEDS, Request
from olivelike.runtime.schedulers.make_scheduler import Scheduler, make_scheduler

if TYPE_CHECKING:
    import torch

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder


@dataclass(frozen=True, eq=False)
class BatchState:
    """What all that makes a batch of pictures needs."""

    request: Request
    """With nothing left open."""
    folder: PipelineFolder
    scheduler: Scheduler
    """Of diffusers, with its timesteps set."""
    seeds: tuple[int, ...]
    """One for each picture."""
    sources: list[torch.Generator]
    """Generators of these seeds."""
    device: str
    """Where latents live."""

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of the latents."""
        assert self.request.size is not None
        width, height = self.request.size
        return height // self.folder.vae_factor, width // self.folder.vae_factor


def begin_batch(request: Request, folder: PipelineFolder, seeds: Sequence[int], device: str) -> BatchState:
    """Make generators and scheduler of a batch.

    Raises:
        UsageError: for a scheduler that there is none of, or a number of steps that it refuses.
        SourceError: if the folder's own is for networks of another kind, or its config is damaged.
    """
    scheduler = make_scheduler(request.scheduler, folder.scheduler)
    try:
        scheduler.set_timesteps(request.steps, device=device)
    except (ValueError, IndexError) as error:
        name = type(scheduler).__name__
        raise UsageError(
            f"{name} refuses {request.steps} steps: {error}; take another number of steps, or another scheduler"
        ) from error
    return BatchState(request, folder, scheduler, tuple(seeds), generators(seeds), device)


def generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """Return a generator on the CPU for each seed."""
    import torch

    return [torch.Generator("cpu").manual_seed(seed) for seed in seeds]


def draw_noise(shape: tuple[int, ...], sources: Sequence[torch.Generator]) -> torch.Tensor:
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
