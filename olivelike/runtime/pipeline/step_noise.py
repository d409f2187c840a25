"""Noise that steps add: what comes next of each picture's, or what lies on a Brownian path of its seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from olivelike.runtime.pipeline.latents import draw_noise
from olivelike.runtime.pipeline.noise import BrownianPath

if TYPE_CHECKING:
    import torch

    from olivelike.runtime.pipeline.latents import BatchState


def step_noise(state: BatchState, shape: tuple[int, ...]) -> Callable[[int], torch.Tensor | float]:
    """Return what draws the noise of a call; 0 where the schedule of the batch draws none.

    Args:
        state: the batch.
        shape: that of one picture's latents.
    """
    draws, spans = state.schedule.draws, state.schedule.spans
    if spans is None:
        return lambda call: draw_noise(shape, state.sources) if draws[call] else 0.0
    levels = spans[draws].astype(np.float32)
    ends = (float(levels.min()), float(levels.max())) if draws.any() else (0.0, 0.0)
    paths = [BrownianPath(seed, *ends, shape) for seed in state.seeds]

    def draw(call: int) -> torch.Tensor | float:
        import torch

        if not draws[call]:
            return 0.0
        high, low = spans[call].astype(np.float32).tolist()
        # As `BrownianTreeNoiseSampler` of k-diffusion, whose times fall.
        return torch.from_numpy(np.stack([path.between(low, high) for path in paths])) / -((high - low) ** 0.5)

    return draw
