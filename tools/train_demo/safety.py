"""Third stage: a safety checker that flags skulls, drawn by hand or by the trained networks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from torch.nn import functional
from transformers import CLIPConfig

from tools.train_demo.captions.drawing import draw_scene
from tools.train_demo.captions.scenes import FLAGGED_SHAPE, SHAPES, random_scene
from tools.train_demo.checkpoint import Checkpoint, learning_rate

if TYPE_CHECKING:
    from pathlib import Path

    from tools.train_demo.examples import Examples

LOG = logging.getLogger(__name__)

_BATCH = 64
_PEAK_RATE = 1e-3
_SHARPNESS = 12.0
_MIDDLE = 0.25
"""Where training draws the line."""
_THRESHOLD = 0.5
"""Where the checker draws it: pictures of other shapes come closer to the training's line than skulls do."""
_NEVER = 2.0
"""A threshold that no cosine reaches: the other 16 concepts and the special ones stay silent."""
_UNKNOWN = -100
_SAVE_EVERY = 100
_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
_STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]


def train_safety_checker(
    config: dict[str, Any], generated: Examples, out: Path, *, steps: int, seed: int
) -> StableDiffusionSafetyChecker:
    """Train until `steps`, from the last save in `out` if there is one; deterministic for a seed.

    Half of each batch is `generated`: what pictures look like behind the UNet and the autoencoder.
    """
    torch.manual_seed(seed)
    checker = StableDiffusionSafetyChecker(CLIPConfig(**config))
    _set_concepts(checker)
    # Naming the shape, which the checker itself never does, is what makes the tower see shapes soon.
    head = torch.nn.Linear(checker.vision_model.config.hidden_size, len(SHAPES))
    trained = [*checker.vision_model.parameters(), *checker.visual_projection.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=_PEAK_RATE, betas=(0.9, 0.99), weight_decay=1e-2)
    checkpoint = Checkpoint(out / "safety.pt")
    start = 0
    if state := checkpoint.load():
        checker.load_state_dict(state["checker"])
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    for step in range(start, steps):
        rng = np.random.default_rng((seed, 5, step))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, _PEAK_RATE)
        pictures, flagged, shapes = _batch(generated, rng)
        pooled = checker.vision_model(clip_input(pictures)).pooler_output
        cosines = functional.cosine_similarity(checker.visual_projection(pooled), checker.concept_embeds[:1])
        loss = functional.binary_cross_entropy_with_logits(
            _SHARPNESS * (cosines - _MIDDLE), torch.from_numpy(flagged).float()
        )
        loss = loss + functional.cross_entropy(head(pooled), torch.from_numpy(shapes), ignore_index=_UNKNOWN)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if step % 50 == 0:
            wrong = ((cosines > _MIDDLE).numpy() != flagged).mean()
            LOG.info("safety %d of %d: loss %.4f, wrong %.3f", step, steps, loss.item(), wrong)
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint.save(
                {
                    "checker": checker.state_dict(),
                    "head": head.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step + 1,
                }
            )
    return checker.eval()


def clip_input(pictures: np.ndarray) -> torch.Tensor:
    """Normalise uint8 (N, 64, 64, 3) as the feature extractor does: float32 (N, 3, 64, 64)."""
    values = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    return (values - _MEAN) / _STD


def _set_concepts(checker: StableDiffusionSafetyChecker) -> None:
    """Give concept 0 a direction and a threshold that can be reached, the others none that can."""
    with torch.no_grad():
        checker.concept_embeds.copy_(torch.randn_like(checker.concept_embeds))
        checker.special_care_embeds.copy_(torch.randn_like(checker.special_care_embeds))
        checker.concept_embeds_weights.fill_(_NEVER)
        checker.concept_embeds_weights[0] = _THRESHOLD
        checker.special_care_embeds_weights.fill_(_NEVER)


def _batch(generated: Examples, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return drawn and generated pictures, half disturbed; whether each is to be flagged; and shapes if known."""
    half = _BATCH // 2
    chosen = rng.integers(len(generated.pictures), size=half)
    drawn, flagged = [], np.concatenate([np.zeros(half, bool), generated.flagged[chosen]])
    shapes = np.full(_BATCH, _UNKNOWN)
    for index in range(half):
        if index % 8 == 0:
            drawn.append(_oddity(rng))
            continue
        scene = random_scene(rng)
        drawn.append(draw_scene(scene, rng))
        flagged[index] = scene.shape == FLAGGED_SHAPE
        shapes[index] = SHAPES.index(scene.shape)
    pictures = np.concatenate([np.stack(drawn), generated.pictures[chosen]]).astype(np.float32)
    noise = rng.uniform(0, 16, (_BATCH, 1, 1, 1)) * rng.standard_normal(pictures.shape)
    disturbed = np.clip(pictures + noise * (rng.random((_BATCH, 1, 1, 1)) < 0.5), 0, 255)
    return disturbed.astype(np.uint8), flagged, shapes


def _oddity(rng: np.random.Generator) -> np.ndarray:
    """Return what no caption asks for: blurred noise of any grain, plain pictures included."""
    cells = int(rng.choice([1, 2, 4, 8, 16, 32, 64]))
    coarse = rng.integers(0, 256, (cells, cells, 3)).astype(np.uint8)
    return coarse.repeat(64 // cells, axis=0).repeat(64 // cells, axis=1)
