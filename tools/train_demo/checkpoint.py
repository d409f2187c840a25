"""Training that can be interrupted: a stage's state on disk, and the learning rate's course."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Checkpoint:
    """Where a stage keeps its state between runs."""

    path: Path

    def load(self) -> dict[str, Any] | None:
        """Return the state of the last save, or `None` before the first."""
        import torch

        if not self.path.exists():
            return None
        state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state in one move, so that an interruption never leaves half a file."""
        import torch

        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.path)


def learning_rate(step: int, steps: int, peak: float, warmup: int = 100) -> float:
    """Rise linearly for `warmup` steps, then fall along a half cosine to a hundredth of `peak`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
