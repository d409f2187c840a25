"""Second stage: the text encoder and the UNet, together, on scaled latents."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from transformers import CLIPTextConfig, CLIPTextModel

from tools.train_demo.captions.captions import partial_caption
from tools.train_demo.checkpoint import Checkpoint, learning_rate

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import CLIPTokenizer

    from tools.train_demo.latents import Latents

LOG = logging.getLogger(__name__)

_BATCH = 64
_PEAK_RATE = 1.5e-3
_DROPPED_CAPTIONS = 0.12
_SNR_BOUND = 5.0
_AVERAGE = 0.998
_SAVE_EVERY = 100
_TOKENS = 77
SHORT_TOKENS = 20
"""Every caption fits; training begins with these, which saves a third of the time, and ends with all 77."""
_SHORT_SHARE = 0.85


@dataclass(frozen=True)
class Denoiser:
    """The two networks of the second stage."""

    text_encoder: CLIPTextModel
    unet: UNet2DConditionModel

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return all weights of both."""
        return [*self.text_encoder.parameters(), *self.unet.parameters()]

    def state_dict(self) -> dict[str, Any]:
        """Return the weights by network."""
        return {"text_encoder": self.text_encoder.state_dict(), "unet": self.unet.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take weights that `state_dict` gave."""
        self.text_encoder.load_state_dict(state["text_encoder"])
        self.unet.load_state_dict(state["unet"])


def make_denoiser(configs: dict[str, dict[str, Any]], seed: int) -> Denoiser:
    """Return both networks with random weights."""
    torch.manual_seed(seed)
    text_config = CLIPTextConfig(**configs["text_encoder"])
    return Denoiser(CLIPTextModel(text_config), UNet2DConditionModel.from_config(configs["unet"]))


def train_denoiser(
    networks: Denoiser,
    tokenizer: CLIPTokenizer,
    latents: Latents,
    scheduler: dict[str, Any],
    out: Path,
    *,
    steps: int,
    seed: int,
) -> Denoiser:
    """Train until `steps`, from the last save in `out` if there is one; deterministic for a seed.

    The loss is that of epsilon prediction with min-SNR weights (https://arxiv.org/abs/2303.09556).

    Returns:
        The running average of the weights.
    """
    # Plain matrix products are faster than the fused kernel at so few channels.
    networks.unet.set_attn_processor(AttnProcessor())
    average = copy.deepcopy(networks)
    optimizer = torch.optim.AdamW(
        networks.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.99), weight_decay=1e-2, fused=True
    )
    checkpoint = Checkpoint(out / "denoiser.pt")
    start = 0
    if state := checkpoint.load():
        networks.load_state_dict(state["networks"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    noising = DDPMScheduler.from_config(scheduler)
    scale = latents.scaling_factor
    running = 0.0
    for step in range(start, steps):
        rng = np.random.default_rng((seed, 3, step))
        torch.manual_seed(seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, _PEAK_RATE)
        length = SHORT_TOKENS if step < _SHORT_SHARE * steps else _TOKENS
        loss = _loss(networks, tokenizer, latents, scale, noising, rng, length)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(networks.parameters(), 1.0)
        optimizer.step()
        blend(average, networks, min(_AVERAGE, (step + 1) / (step + 10)))
        running += 0.02 * (loss.item() - running) if running else loss.item()
        if step % 50 == 0:
            LOG.info("denoiser %d of %d: loss %.4f", step, steps, running)
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint.save(
                {
                    "networks": networks.state_dict(),
                    "average": average.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step + 1,
                }
            )
    return average


def _loss(
    networks: Denoiser,
    tokenizer: CLIPTokenizer,
    latents: Latents,
    scale: float,
    noising: DDPMScheduler,
    rng: np.random.Generator,
    length: int,
) -> torch.Tensor:
    chosen = rng.integers(len(latents.scenes), size=_BATCH)
    captions = [
        "" if rng.random() < _DROPPED_CAPTIONS else partial_caption(latents.scenes[index], rng) for index in chosen
    ]
    tokens = tokenizer(captions, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    context = networks.text_encoder(tokens.input_ids).last_hidden_state
    clean = latents.mean[chosen] + latents.std[chosen] * torch.randn(latents.mean[chosen].shape)
    clean = clean * scale
    noise = torch.randn_like(clean)
    timesteps = torch.randint(0, noising.config.num_train_timesteps, (_BATCH,))
    noised = noising.add_noise(clean, noise, timesteps)
    predicted = networks.unet(noised, timesteps, context).sample
    weights = weights_of_noise(noising.alphas_cumprod[timesteps])
    errors = (predicted - noise).square().mean(dim=(1, 2, 3))
    return (weights * errors).mean()


def weights_of_noise(kept: torch.Tensor, most: float = 1.0) -> torch.Tensor:
    """Return what errors of epsilon count at timesteps.

    Where there is more signal than noise that is min-SNR. Where there is less, epsilon is nearly the input,
    whatever the picture is to be: an error of the picture is that of epsilon times the ratio of noise to signal, which
    is the weight up to `most` (truncated SNR, https://arxiv.org/abs/2202.00512).

    Args:
        kept: `alphas_cumprod` at the timesteps.
        most: 1 for the plain loss of epsilon.
    """
    snr = kept / (1 - kept)
    return torch.clamp(_SNR_BOUND / snr, max=1.0) * torch.clamp(1 / snr, 1.0, most)


def blend(average: Denoiser, networks: Denoiser, share: float) -> None:
    """Keep a share of an average's weights, and take the rest from the networks."""
    with torch.no_grad():
        for old, new in zip(average.parameters(), networks.parameters(), strict=True):
            old.lerp_(new, 1 - share)
