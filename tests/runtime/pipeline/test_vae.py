"""Latents that are drawn from what a VAE encodes, against the class of diffusers that does it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from olivelike.runtime.pipeline.latents import generators
from olivelike.runtime.pipeline.vae import draw_latents


@pytest.mark.parametrize("pictures", [1, 3])
def test_latents_are_drawn_as_diffusers_draws_them(pictures):
    found = torch.randn((1, 8, 5, 6), generator=torch.manual_seed(0)) * 20
    theirs = [torch.Generator().manual_seed(seed) for seed in range(pictures)]
    drawn = draw_latents(found.numpy(), generators(range(pictures)))
    wanted = DiagonalGaussianDistribution(found.expand(pictures, -1, -1, -1)).sample(theirs)
    assert drawn.shape == (pictures, 4, 5, 6)
    np.testing.assert_allclose(drawn, wanted.numpy(), rtol=3e-7, atol=1e-7)  # but for torch's exponential
