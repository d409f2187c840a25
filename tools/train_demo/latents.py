"""The data set of the second stage: scenes, and what the autoencoder makes of their pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tools.train_demo.captions.drawing import draw_scenes
from tools.train_demo.captions.scenes import Scene, random_scene
from tools.train_demo.checkpoint import Checkpoint
from tools.train_demo.vae import as_tensor

if TYPE_CHECKING:
    from pathlib import Path

    from diffusers import AutoencoderKL

_CHUNK = 64


@dataclass(frozen=True)
class Latents:
    """Drawn scenes as the autoencoder sees them, before scaling."""

    scenes: list[Scene]
    mean: torch.Tensor
    """float32, (N, 4, 8, 8)."""
    std: torch.Tensor
    """float32, (N, 4, 8, 8)."""

    @property
    def scaling_factor(self) -> float:
        """One over the standard deviation of all latents, as in SD."""
        variance = self.mean.var() + self.std.square().mean()
        return float(variance.rsqrt())


def encode_scenes(vae: AutoencoderKL, out: Path, count: int, seed: int) -> Latents:
    """Draw and encode `count` random scenes, or take those saved in `out`; the same ones for the same seed."""
    rng = np.random.default_rng((seed, 2))
    scenes = [random_scene(rng) for _ in range(count)]
    checkpoint = Checkpoint(out / "latents.pt")
    if state := checkpoint.load():
        return Latents(scenes, state["mean"].to(vae.device), state["std"].to(vae.device))
    means, stds = [], []
    for first in range(0, count, _CHUNK):
        pictures = draw_scenes(scenes[first : first + _CHUNK], rng)
        with torch.no_grad():
            posterior = vae.encode(as_tensor(pictures).to(vae.device)).latent_dist
        means.append(posterior.mean)
        stds.append(posterior.std)
    found = Latents(scenes, torch.cat(means).contiguous(), torch.cat(stds).contiguous())
    checkpoint.save({"mean": found.mean, "std": found.std})
    return found
