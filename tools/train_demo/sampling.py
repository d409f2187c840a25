"""Pictures that the trained networks draw, through diffusers' own pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from diffusers import StableDiffusionPipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diffusers import AutoencoderKL, SchedulerMixin
    from transformers import CLIPTokenizer

    from tools.train_demo.denoiser import Denoiser

_BATCH = 50


def make_pipeline(
    networks: Denoiser, vae: AutoencoderKL, tokenizer: CLIPTokenizer, scheduler: SchedulerMixin
) -> StableDiffusionPipeline:
    """Return diffusers' text-to-picture pipeline, without safety checker or progress bar."""
    pipeline = StableDiffusionPipeline(
        vae=vae, text_encoder=networks.text_encoder, tokenizer=tokenizer, unet=networks.unet,
        scheduler=scheduler, safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw_captions(
    pipeline: StableDiffusionPipeline,
    captions: Sequence[str],
    *,
    seed: int,
    steps: int = 25,
    guidance_scale: float = 5.0,
    negative_prompt: str = "",
) -> np.ndarray:
    """Draw one picture for each caption: uint8 RGB, (N, 64, 64, 3)."""
    drawn = []
    for first in range(0, len(captions), _BATCH):
        batch = list(captions[first : first + _BATCH])
        done = pipeline(
            batch, height=64, width=64, num_inference_steps=steps, guidance_scale=guidance_scale,
            negative_prompt=[negative_prompt] * len(batch), output_type="np",
            generator=torch.Generator().manual_seed(seed + first),
        )  # fmt: skip
        drawn.append(np.rint(done.images * 255).astype(np.uint8))
    return np.concatenate(drawn)
