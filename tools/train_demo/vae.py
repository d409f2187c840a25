"""First stage: the autoencoder between 64x64 pictures and 8x8 latents."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch.nn import functional

from tools.train_demo.captions.drawing import draw_scenes
from tools.train_demo.captions.scenes import random_scene
from tools.train_demo.checkpoint import Checkpoint, learning_rate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LOG = logging.getLogger(__name__)

_BATCH = 8
_PEAK_RATE = 2e-3
_KL_WEIGHT = 5e-4
_EDGE_WEIGHT = 1.0
_INK = 0.15
"""How far, in [-1, 1], a pixel of the shape is from the corner's colour in some channel."""
_INK_WEIGHT = 2.0
_SAVE_EVERY = 200


def train_vae(
    config: dict[str, Any],
    out: Path,
    *,
    encoder_steps: int,
    steps: int,
    seed: int,
    begin: Mapping[str, torch.Tensor] = MappingProxyType({}),
    device: str = "cpu",
) -> AutoencoderKL:
    """Train until `steps`, from the last save in `out` if there is one; deterministic for a seed.

    The encoder learns for `encoder_steps` and then stands still: the decoder alone is what makes pictures sharp, and
    takes half the time without the encoder's backward pass.

    Args:
        begin: weights of another one, of which those are taken whose names and shapes are the same.
        device: where it learns and stays.

    Returns:
        The trained network, whose `scaling_factor` gives latents a standard deviation of 1.
    """
    torch.manual_seed(seed)
    vae = AutoencoderKL.from_config(config).to(memory_format=torch.channels_last)
    own = vae.state_dict()
    vae.load_state_dict(
        own | {name: value for name, value in begin.items() if name in own and value.shape == own[name].shape}
    )
    # Latents start nearly without noise: else the decoder learns to ignore them first.
    last = vae.encoder.conv_out if vae.quant_conv is None else vae.quant_conv
    torch.nn.init.constant_(last.bias[vae.config["latent_channels"] :].data, -6.0)
    vae.to(device)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.99), weight_decay=1e-4)
    checkpoint = Checkpoint(out / "vae.pt")
    start = 0
    if state := checkpoint.load():
        vae.load_state_dict(state["vae"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    for step in range(start, steps):
        rng = np.random.default_rng((seed, 1, step))
        torch.manual_seed(seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, _PEAK_RATE)
        pictures = as_tensor(draw_scenes([random_scene(rng) for _ in range(_BATCH)], rng)).to(device)
        with torch.set_grad_enabled(step < encoder_steps):
            posterior = vae.encode(pictures).latent_dist
        restored = vae.decode(posterior.sample()).sample
        weights = _pixel_weights(pictures)
        errors = (restored - pictures) * weights
        difference, square = errors.abs().mean(), errors.square().mean()
        kl = posterior.kl().mean() / posterior.mean[0].numel()
        loss = difference + square + _EDGE_WEIGHT * _edge_loss(restored, pictures) + _KL_WEIGHT * kl
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            LOG.info("vae %d of %d: L1 %.4f, KL %.2f", step, steps, difference.item(), kl.item())
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint.save({"vae": vae.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1})
    vae.eval().requires_grad_(requires_grad=False)
    return vae


def as_tensor(pictures: np.ndarray) -> torch.Tensor:
    """Turn uint8 (N, H, W, 3) into float32 (N, 3, H, W) in [-1, 1]."""
    values = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
    return values.contiguous(memory_format=torch.channels_last)


def _pixel_weights(pictures: torch.Tensor) -> torch.Tensor:
    """Make the shape count as much as the background, which has several times its pixels."""
    paper = pictures[:, :, :1, :1]
    inked = (pictures - paper).abs().amax(dim=1, keepdim=True) > _INK
    return 1 + _INK_WEIGHT * inked.float()


def _edge_loss(restored: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
    """Compare differences of neighbouring pixels, which keeps outlines sharp."""
    across = functional.mse_loss(restored.diff(dim=3), pictures.diff(dim=3))
    down = functional.mse_loss(restored.diff(dim=2), pictures.diff(dim=2))
    return across + down
