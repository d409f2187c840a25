"""Trains the demo's ControlNet, led by edges: `python -m tools.train_demo.controlnet OUT`.

A `ControlNetModel` (https://arxiv.org/abs/2302.05543) that begins as the UNet's way down. It sees outlines of shapes of
any size at any place; captions name a size and a place of their own at times, so that it learns to overrule them.

The result is the diffusers folder `OUT/demo_edges`, in float16; data and state are saved in OUT and resumed from.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import ControlNetModel, StableDiffusionControlNetPipeline
from diffusers.models.attention_processor import AttnProcessor
from PIL import Image, ImageFilter

from tools.train_demo.captions.caption_reading import read_picture
from tools.train_demo.captions.captions import partial_caption, whole_caption
from tools.train_demo.captions.drawing import PICTURE_SIZE, draw_at, shape_coverage
from tools.train_demo.captions.scenes import Scene, random_scene
from tools.train_demo.checkpoint import Checkpoint, learning_rate
from tools.train_demo.denoiser import SHORT_TOKENS, weights_of_noise
from tools.train_demo.few_steps import encode_captions, load_demo
from tools.train_demo.vae import as_tensor
from tools.train_demo.writing import write_network

if TYPE_CHECKING:
    from diffusers import StableDiffusionPipeline

LOG = logging.getLogger("tools.train_demo.controlnet")

FOLDER = "demo_edges"

_HINT_WIDTHS = (8, 16, 24, 32)
_RADII = (10.0, 23.0)
_MARGIN = 1.5
_BATCH = 64
_CHUNK = 64
_PEAK_RATE = 1e-3
_AVERAGE = 0.99
_DROPPED_CAPTIONS = 0.12
_NOISY, _NOISY_SHARE = 600, 0.5
"""From this timestep on it is decided where the shape will be; so often others are left out."""
_MOST_WEIGHT = 30.0
_DIMMEST = 0.6
"""How dark the lines of a drawing may be, of white: networks are led by faint lines, too."""
_SAVE_EVERY = 50


@dataclass(frozen=True)
class Drawings:
    """Scenes with a shape anywhere, their outlines, and what the autoencoder makes of them."""

    scenes: list[Scene]
    """Size and place are those of captions: no shape stands there."""
    outlines: torch.Tensor
    """uint8, (N, 64, 64)."""
    mean: torch.Tensor
    """float32, (N, 4, 8, 8), not scaled."""
    std: torch.Tensor


@dataclass(frozen=True)
class Placing:
    """How many pictures have their shape where its edges were."""

    pictures: int
    placed: int
    """With the centre at most 4 pixels off and the extent at most a fifth."""
    right: int
    """With shape and colours as the caption says."""


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.controlnet", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the state and the result")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=8000, help="drawn pictures to learn from")
    parser.add_argument("--steps", type=int, default=1500)
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    demo = load_demo()
    drawings = make_drawings(demo, chosen.out, chosen.pictures, chosen.seed)
    network = train_controlnet(demo, drawings, chosen.out, steps=chosen.steps, seed=chosen.seed)
    write_network(chosen.out / FOLDER, published_config(network), network.state_dict())
    LOG.info("pictures led by edges: %s", measure(demo, network, 100, chosen.seed))


def random_geometry(rng: np.random.Generator) -> tuple[float, float, float]:
    """Return centre and radius, in pixels, of a shape that lies wholly inside the picture."""
    radius = rng.uniform(*_RADII)
    low, high = radius + _MARGIN, PICTURE_SIZE - radius - _MARGIN
    return rng.uniform(low, high), rng.uniform(low, high), radius


def outline(shape: str, x: float, y: float, radius: float, width: int = 1, *, outside: bool = False) -> np.ndarray:
    """Draw a shape's edges, white on black.

    Args:
        shape: one of `SHAPES`.
        x: horizontal centre in pixels, from the left.
        y: vertical centre, from the top.
        radius: half of the shape's larger extent.
        width: of the lines; 1 as the Canny detector draws them.
        outside: whether lines of width 1 run along the background's pixels, not the shape's.

    Returns:
        uint8, (64, 64).
    """
    filled = Image.fromarray(((shape_coverage(shape, x, y, radius) > 0.5) * 255).astype(np.uint8))
    grown = filled.filter(ImageFilter.MaxFilter(3)) if outside or width > 1 else filled
    shrunk = filled if outside and width == 1 else filled.filter(ImageFilter.MinFilter(3))
    lines = Image.fromarray(np.asarray(grown) - np.asarray(shrunk))
    return np.asarray(lines.filter(ImageFilter.MaxFilter(3)) if width > 2 else lines)


def make_drawings(demo: StableDiffusionPipeline, out: Path, count: int, seed: int) -> Drawings:
    """Draw and encode scenes, or take those saved in `out`; the same ones for the same seed."""
    rng = np.random.default_rng((seed, 7))
    scenes = [random_scene(rng) for _ in range(count)]
    checkpoint = Checkpoint(out / "drawings.pt")
    if state := checkpoint.load():
        return Drawings(scenes, **state)
    outlines, means, stds = [], [], []
    for first in range(0, count, _CHUNK):
        pictures = []
        for scene in scenes[first : first + _CHUNK]:
            x, y, radius = random_geometry(rng)
            pictures.append(draw_at(scene, x, y, radius, rng))
            width = int(rng.choice((1, 2, 4), p=(0.7, 0.2, 0.1)))
            outlines.append(outline(scene.shape, x, y, radius, width, outside=rng.random() < 0.5))
        with torch.no_grad():
            posterior = demo.vae.encode(as_tensor(np.stack(pictures))).latent_dist
        means.append(posterior.mean)
        stds.append(posterior.std)
    state = {
        "outlines": torch.from_numpy(np.stack(outlines)),
        "mean": torch.cat(means).contiguous(),
        "std": torch.cat(stds).contiguous(),
    }
    checkpoint.save(state)
    return Drawings(scenes, **state)


def train_controlnet(
    demo: StableDiffusionPipeline, drawings: Drawings, out: Path, *, steps: int, seed: int
) -> ControlNetModel:
    """Train until `steps`, from the last save in `out` if there is one; deterministic for a seed.

    Returns:
        The network with the running average of its weights.
    """
    unet = demo.unet.requires_grad_(requires_grad=False)
    torch.manual_seed(seed)
    network = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=_HINT_WIDTHS)
    network.set_attn_processor(AttnProcessor())
    average = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.999), weight_decay=1e-2, fused=True
    )
    checkpoint = Checkpoint(out / "controlnet.pt")
    start = 0
    if state := checkpoint.load():
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        average, start = state["average"], state["step"]
    running = 0.0
    for step in range(start, steps):
        rng = np.random.default_rng((seed, 8, step))
        torch.manual_seed(seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, _PEAK_RATE)
        loss = _loss(demo, network, drawings, rng)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for name, weight in network.named_parameters():
                average[name].lerp_(weight, 1 - min(_AVERAGE, (step + 1) / (step + 10)))
        running += 0.02 * (loss.item() - running) if running else loss.item()
        if step % 50 == 0:
            LOG.info("controlnet %d of %d: loss %.4f", step, steps, running)
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint.save(
                {
                    "network": network.state_dict(),
                    "average": average,
                    "optimizer": optimizer.state_dict(),
                    "step": step + 1,
                }
            )
    network.load_state_dict(average, strict=False)
    return network.eval().requires_grad_(requires_grad=False)


def _loss(
    demo: StableDiffusionPipeline, network: ControlNetModel, drawings: Drawings, rng: np.random.Generator
) -> torch.Tensor:
    chosen = rng.integers(len(drawings.scenes), size=_BATCH)
    captions = [
        "" if rng.random() < _DROPPED_CAPTIONS else partial_caption(drawings.scenes[index], rng) for index in chosen
    ]
    clean = drawings.mean[chosen] + drawings.std[chosen] * torch.randn(drawings.mean[chosen].shape)
    clean = clean * demo.vae.config.scaling_factor
    noise = torch.randn_like(clean)
    alphas = demo.scheduler.alphas_cumprod
    timesteps = torch.randint(0, len(alphas), (_BATCH,))
    noisy = torch.randint(_NOISY, len(alphas), (_BATCH,))
    timesteps = torch.where(torch.rand(_BATCH) < _NOISY_SHARE, noisy, timesteps)
    weights = weights_of_noise(alphas[timesteps], _MOST_WEIGHT)
    noised = demo.scheduler.add_noise(clean, noise, timesteps)
    brightness = torch.from_numpy(rng.uniform(_DIMMEST, 1.0, _BATCH)).float()
    hints = drawings.outlines[chosen].float() / 255 * brightness[:, None, None]
    with torch.no_grad():
        context = encode_captions(demo, captions, length=SHORT_TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        down, middle = network(
            noised, timesteps, context, hints[:, None].expand(-1, 3, -1, -1), return_dict=False
        )  # fmt: skip
        predicted = demo.unet(
            noised, timesteps, context, down_block_additional_residuals=down, mid_block_additional_residual=middle
        ).sample.float()
    errors = (predicted - noise).square().mean(dim=(1, 2, 3))
    return (weights * errors).mean()


def published_config(network: ControlNetModel) -> dict[str, Any]:
    """Return the network's config as diffusers writes it, without what names this machine's versions."""
    config = dict(network.config) | {"_class_name": type(network).__name__}
    return {key: config[key] for key in sorted(config) if not key.startswith("_") or key == "_class_name"}


def measure(
    demo: StableDiffusionPipeline, network: ControlNetModel, count: int, seed: int, *, steps: int = 25
) -> Placing:
    """Draw captions of random scenes, led by outlines at random places, and count those that follow."""
    pipeline = StableDiffusionControlNetPipeline(
        **{name: part for name, part in demo.components.items() if name != "image_encoder"},
        controlnet=network, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    rng = np.random.default_rng((seed, 9))
    scenes = [random_scene(rng) for _ in range(count)]
    places = [random_geometry(rng) for _ in scenes]
    lines = [outline(scene.shape, *place) for scene, place in zip(scenes, places, strict=True)]
    drawn = pipeline(
        [whole_caption(scene) for scene in scenes],
        image=[Image.fromarray(line).convert("RGB") for line in lines],
        height=PICTURE_SIZE, width=PICTURE_SIZE, num_inference_steps=steps, guidance_scale=5.0, output_type="np",
        generator=torch.Generator().manual_seed(seed),
    ).images  # fmt: skip
    return count_placed(scenes, places, np.rint(drawn * 255).astype(np.uint8))


def count_placed(scenes: list[Scene], places: list[tuple[float, float, float]], pictures: np.ndarray) -> Placing:
    """Compare pictures, uint8 RGB (N, 64, 64, 3), with drawings of the same shapes at the given places."""
    rng = np.random.default_rng(0)
    placed = right = 0
    for scene, place, picture in zip(scenes, places, pictures, strict=True):
        asked, shown = read_picture(draw_at(scene, *place, rng)), read_picture(picture)
        placed += shown.stands_like(asked)
        right += (shown.shape, shown.color, shown.background) == (scene.shape, scene.color, scene.background)
    return Placing(len(scenes), placed, right)


if __name__ == "__main__":
    main()
