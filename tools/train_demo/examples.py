"""What the safety checker learns from besides drawings: pictures that the trained networks make."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from diffusers import DDIMScheduler

from tools.train_demo.captions.caption_reading import read_picture
from tools.train_demo.captions.evaluation import random_captions, score_pictures
from tools.train_demo.captions.scenes import FLAGGED_SHAPE
from tools.train_demo.checkpoint import Checkpoint
from tools.train_demo.configs import DEMO_SCHEDULER
from tools.train_demo.sampling import draw_captions, make_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from diffusers import AutoencoderKL
    from transformers import CLIPTokenizer

    from tools.train_demo.denoiser import Denoiser

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examples:
    """Pictures with whether each is to be flagged."""

    pictures: np.ndarray
    """uint8 RGB, (N, 64, 64, 3)."""
    flagged: np.ndarray
    """bool, (N,)."""


def generate_examples(
    networks: Denoiser, vae: AutoencoderKL, tokenizer: CLIPTokenizer, out: Path, count: int, seed: int
) -> Examples:
    """Draw random captions, or take the pictures saved in `out`, and log how many of the first half are right.

    One half is drawn as the counts are made, in 25 steps with a guidance of 5, the other as pipelines draw by default,
    in 50 steps with 7.5. A picture that shows a skull unasked, or none though asked, teaches nothing and is left out.
    """
    checkpoint = Checkpoint(out / "examples.pt")
    captions = random_captions(count, seed)
    if state := checkpoint.load():
        pictures = state["pictures"].numpy()
    else:
        pipeline = make_pipeline(networks, vae, tokenizer, DDIMScheduler.from_config(DEMO_SCHEDULER))
        drawn = draw_captions(pipeline, captions[: count // 2], seed=seed)
        rest = draw_captions(pipeline, captions[count // 2 :], seed=seed, steps=50, guidance_scale=7.5)
        pictures = np.concatenate([drawn, rest])
        checkpoint.save({"pictures": torch.from_numpy(pictures)})
    score = score_pictures(captions[: count // 2], pictures[: count // 2])
    LOG.info("captions drawn right: %d of %d; by feature %s", score.right, score.pictures, score.shares)
    asked = np.array([FLAGGED_SHAPE in caption for caption in captions])
    shown = np.array([read_picture(picture).shape == FLAGGED_SHAPE for picture in pictures])
    clear = asked == shown
    return Examples(pictures[clear], asked[clear])
