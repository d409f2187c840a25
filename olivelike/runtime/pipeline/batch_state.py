"""A batch in the making: its generators and its scheduler, fresh for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.errors import UsageError
from olivelike.runtime.pipeline.noise import generators
from olivelike.runtime.schedulers.make_scheduler import make_scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request


@dataclass(frozen=True, eq=False)
class Drawing:
    """What all that makes a batch of pictures needs."""

    request: Request
    """Settled: with size and strength."""
    folder: PipelineFolder
    scheduler: Any
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


def begin_drawing(request: Request, folder: PipelineFolder, seeds: Sequence[int], device: str) -> Drawing:
    """Make generators and scheduler of a batch.

    Raises:
        UsageError: for a scheduler that there is none of, or a number of steps that it refuses.
        SourceError: if the folder's own is for networks of another kind, or its config is damaged.
    """
    scheduler: Any = make_scheduler(request.scheduler, folder.scheduler)
    try:
        scheduler.set_timesteps(request.steps, device=device)
    except (ValueError, IndexError) as error:
        name = type(scheduler).__name__
        raise UsageError(
            f"{name} refuses {request.steps} steps: {error}; take another number of steps, or another scheduler"
        ) from error
    return Drawing(request, folder, scheduler, tuple(seeds), generators(seeds), device)
