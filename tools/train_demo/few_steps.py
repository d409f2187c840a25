"""Distils the demo's UNet for pictures in 4 steps: `python -m tools.train_demo.few_steps OUT`.

A consistency model (https://arxiv.org/abs/2303.01469) as LCM has it (https://arxiv.org/abs/2310.04378): from any point
of the guided teacher's course, one evaluation without guidance gives the course's end. The courses are short at these
widths, so the student learns from their ends as the teacher's solver finds them, not from its own guesses.

A first guess from pure noise may have a colour that was not asked for. So some courses from the second timestep begin
at drawings of another colour than the caption's, and the student learns to correct its own guess.

Only a LoRA is trained, from nothing or from the shipped one (`--on`). The result is `OUT/demo_lcm.safetensors`; state
and courses are saved in OUT and resumed from.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DPMSolverMultistepScheduler, LCMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from safetensors.torch import load_file, save_file
from torch.func import functional_call

from olivelike.data import demo_few_steps_lora, demo_folder
from tools.train_demo.captions.captions import partial_caption, random_caption
from tools.train_demo.captions.drawing import draw_scenes
from tools.train_demo.captions.evaluation import Score, random_captions, score_pictures
from tools.train_demo.captions.scenes import COLORS, Scene, random_scene
from tools.train_demo.checkpoint import Checkpoint, learning_rate
from tools.train_demo.sampling import draw_captions
from tools.train_demo.vae import as_tensor

LOG = logging.getLogger("tools.train_demo.few_steps")

STARTS = ((999, 10, 0.4), (759, 8, 0.25), (499, 5, 0.2), (259, 4, 0.15))
"""Where courses begin: LCM's timesteps for 4 steps, with the teacher's steps from there and the part of the courses."""

METADATA = {
    "format": "pt",
    "modelspec.title": "Demo LCM 4 steps",
    "modelspec.architecture": "stable-diffusion-v1/lora",
    "modelspec.license": "Apache-2.0",
}
"""What tells readers of the file that it is a few-step LoRA, after https://github.com/Stability-AI/ModelSpec."""

_GUIDANCE = 5.0
_RANK = 16
_BATCH = 64
_PEAK_RATE = 2e-3
_AVERAGE = 0.995
_HUBER = 0.03
_AT_START = 0.6
"""How often a course is learned from at its beginning, not on its way."""
_PARTIAL = 0.3
_RECOLORED, _RECOLORED_FROM = 0.3, 759
_SAVE_EVERY = 50


@dataclass(frozen=True)
class Courses:
    """The guided teacher's courses from one timestep."""

    captions: list[str]
    timesteps: list[int]
    points: torch.Tensor
    """float32, (steps, N, 4, 8, 8): where each course is at each timestep."""
    ends: torch.Tensor
    """float32, (N, 4, 8, 8)."""


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.few_steps", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the state and the result")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=60, help="of 64 courses each")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--on", action="store_true", help="train the shipped LoRA on, not a new one")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    teacher = load_demo()
    courses = make_courses(teacher, chosen.out, chosen.batches, chosen.seed)
    begun = read_lora(demo_few_steps_lora()) if chosen.on else None
    factors = distil(teacher, courses, chosen.out, steps=chosen.steps, seed=chosen.seed, begun=begun)
    write_lora(teacher.unet, factors, chosen.out / "demo_lcm.safetensors")
    LOG.info("captions drawn right in 4 steps: %s", measure(teacher, factors, random_captions(200, chosen.seed)))


def load_demo() -> StableDiffusionPipeline:
    """Return the shipped pipeline in float32, without its safety checker."""
    pipeline: StableDiffusionPipeline = StableDiffusionPipeline.from_pretrained(
        demo_folder(), safety_checker=None, requires_safety_checker=False, local_files_only=True
    )
    pipeline.unet.set_attn_processor(AttnProcessor())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def make_courses(teacher: StableDiffusionPipeline, out: Path, batches: int, seed: int) -> list[Courses]:
    """Follow the teacher from noised drawings to the end, or take what is saved in `out`.

    Courses that end in a picture that its caption does not describe are left out.
    """
    counts = [round(share * batches) for _, _, share in STARTS]
    plan = [(start, steps) for (start, steps, _), count in zip(STARTS, counts, strict=True) for _ in range(count)]
    found = []
    for index, (start, steps) in enumerate(plan):
        checkpoint = Checkpoint(out / f"courses-{index}.pt")
        state = checkpoint.load()
        if state is None:
            state = _follow(teacher, start, steps, np.random.default_rng((seed, 5, index)), seed * 1_000_003 + index)
            checkpoint.save(state)
            LOG.info("courses %d of %d, from %d", index, len(plan), start)
        found.append(Courses(**state))
    return found


@torch.no_grad()
def _follow(
    teacher: StableDiffusionPipeline, start: int, steps: int, rng: np.random.Generator, seed: int
) -> dict[str, Any]:
    noise_source = torch.Generator().manual_seed(seed)
    scenes = [random_scene(rng) for _ in range(_BATCH)]
    captions = [(partial_caption if rng.random() < _PARTIAL else random_caption)(scene, rng) for scene in scenes]
    drawn = [recolored(scene, rng) for scene in scenes] if start == _RECOLORED_FROM else scenes
    clean = teacher.vae.encode(as_tensor(draw_scenes(drawn, rng))).latent_dist.sample(noise_source)
    solver = DPMSolverMultistepScheduler.from_config(teacher.scheduler.config)
    timesteps = [round(start * (steps - step) / steps) for step in range(steps)]
    solver.set_timesteps(timesteps=timesteps)
    noise = torch.randn(clean.shape, generator=noise_source)
    sample = teacher.scheduler.add_noise(clean * teacher.vae.config.scaling_factor, noise, torch.tensor([start]))
    context = torch.cat([encode_captions(teacher, [""] * _BATCH), encode_captions(teacher, captions)])
    points = []
    for timestep in timesteps:
        points.append(sample)
        without, asked = teacher.unet(torch.cat([sample] * 2), timestep, context).sample.chunk(2)
        sample = solver.step(without + _GUIDANCE * (asked - without), timestep, sample).prev_sample
    pictures = as_pictures(teacher.vae.decode(sample / teacher.vae.config.scaling_factor).sample)
    wrong = {caption for caption, _ in score_pictures(captions, pictures).wrong}
    right = [index for index, caption in enumerate(captions) if caption not in wrong]
    captions = [captions[index] for index in right]
    return {
        "captions": captions,
        "timesteps": timesteps,
        "points": torch.stack(points)[:, right],
        "ends": sample[right],
    }


def recolored(scene: Scene, rng: np.random.Generator) -> Scene:
    """Give a scene another colour than the caption says, at times."""
    if rng.random() >= _RECOLORED:
        return scene
    others = [name for name in COLORS if name not in {scene.color, scene.background}]
    return replace(scene, color=str(rng.choice(others)))


def as_pictures(values: torch.Tensor) -> np.ndarray:
    """Turn float32 (N, 3, H, W) in [-1, 1] into uint8 (N, H, W, 3)."""
    return ((values.clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 1).byte().numpy()


def encode_captions(teacher: StableDiffusionPipeline, captions: list[str], length: int = 77) -> torch.Tensor:
    """Return what the text encoder makes of captions of `length` tokens: float32, (N, length, 64)."""
    tokens = teacher.tokenizer(captions, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    context: torch.Tensor = teacher.text_encoder(tokens.input_ids).last_hidden_state
    return context


def distil(
    teacher: StableDiffusionPipeline,
    courses: list[Courses],
    out: Path,
    *,
    steps: int,
    seed: int,
    begun: dict[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Train the LoRA until `steps`, from the last save in `out` if there is one; deterministic for a seed.

    Args:
        teacher: the guided pipeline.
        courses: what to learn from.
        out: folder of the state.
        steps: of training.
        seed: of new factors, and of what is drawn from the courses.
        begun: factors to begin with; new ones without.

    Returns:
        The running average of its factors, by `LAYER.lora_A.weight` and `LAYER.lora_B.weight`.
    """
    unet = teacher.unet.requires_grad_(requires_grad=False)
    base = {name: weight for name, weight in unet.named_parameters() if weight.ndim > 1}
    factors = begun or _new_factors(base, seed)
    average = {name: factor.clone() for name, factor in factors.items()}
    trained = [factor.requires_grad_() for factor in factors.values()]
    optimizer = torch.optim.AdamW(trained, lr=_PEAK_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    checkpoint = Checkpoint(out / "few_steps.pt")
    first = 0
    if state := checkpoint.load():
        for name, factor in factors.items():
            factor.data.copy_(state["factors"][name])
        average, first = state["average"], state["step"]
        optimizer.load_state_dict(state["optimizer"])
    alphas = teacher.scheduler.alphas_cumprod
    with torch.no_grad():
        contexts = [encode_captions(teacher, course.captions) for course in courses]
    weights = np.array([len(course.ends) for course in courses], float)
    running = 0.0
    for step in range(first, steps):
        rng = np.random.default_rng((seed, 6, step))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, _PEAK_RATE)
        sample, timesteps, context, ends = _draw(courses, contexts, weights / weights.sum(), rng)
        kept = alphas[timesteps].view(-1, 1, 1, 1)
        with torch.autocast("cpu", torch.bfloat16):
            merged = merge(base, factors)
            noise = functional_call(unet, merged, (sample, timesteps, context)).sample.float()
        error = (sample - (1 - kept).sqrt() * noise) / kept.sqrt() - ends
        loss = ((error.square().mean(dim=(1, 2, 3)) + _HUBER**2).sqrt() - _HUBER).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        with torch.no_grad():
            for name, factor in factors.items():
                average[name].lerp_(factor, 1 - min(_AVERAGE, (step + 1) / (step + 10)))
        running += 0.02 * (loss.item() - running) if running else loss.item()
        if step % 50 == 0:
            LOG.info("few steps %d of %d: loss %.4f", step, steps, running)
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
            state = {"factors": {name: factor.detach() for name, factor in factors.items()}, "average": average}
            checkpoint.save({**state, "optimizer": optimizer.state_dict(), "step": step + 1})
    return average


def _new_factors(base: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return factors whose product is 0 for every matrix and convolution."""
    source = torch.Generator().manual_seed(seed)
    factors = {}
    for name, weight in base.items():
        layer, columns = name.removesuffix(".weight"), weight[0].numel()
        rank = min(_RANK, len(weight), columns)
        factors[f"{layer}.lora_A.weight"] = torch.randn(rank, columns, generator=source) / columns**0.5
        factors[f"{layer}.lora_B.weight"] = torch.zeros(len(weight), rank)
    return factors


def merge(base: dict[str, torch.Tensor], factors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with the products of their factors added."""
    merged = {}
    for name, weight in base.items():
        layer = name.removesuffix(".weight")
        product = factors[f"{layer}.lora_B.weight"] @ factors[f"{layer}.lora_A.weight"]
        merged[name] = weight + product.float().view_as(weight)
    return merged


def _draw(
    courses: list[Courses], contexts: list[torch.Tensor], shares: np.ndarray, rng: np.random.Generator
) -> tuple[torch.Tensor, ...]:
    """Return points of random courses with their timesteps, prompts and ends."""
    drawn = []
    for which in rng.choice(len(courses), size=_BATCH, p=shares):
        course, one = courses[which], rng.integers(len(contexts[which]))
        at = 0 if rng.random() < _AT_START else rng.integers(len(course.timesteps))
        drawn.append((course.points[at, one], course.timesteps[at], contexts[which][one], course.ends[one]))
    samples, timesteps, prompts, ends = zip(*drawn, strict=True)
    return torch.stack(samples), torch.tensor(timesteps), torch.stack(prompts), torch.stack(ends)


def write_lora(unet: UNet2DConditionModel, factors: dict[str, torch.Tensor], path: Path) -> None:
    """Write the factors in float16, by the names and with the shapes that diffusers gives a LoRA of a UNet."""
    stored = {}
    for name, factor in factors.items():
        layer, _, which = name.removesuffix(".weight").rpartition(".")
        kernel = unet.get_parameter(f"{layer}.weight").shape[2:]
        shape = (*factor.shape, *(1 for _ in kernel)) if which == "lora_B" else (len(factor), -1, *kernel)
        stored[f"unet.{name}"] = factor.detach().reshape(shape).half().contiguous()
    save_file(stored, path, metadata=METADATA)


def read_lora(path: Path) -> dict[str, torch.Tensor]:
    """Return the factors, float32 matrices, that `write_lora` wrote."""
    return {name.removeprefix("unet."): value.float().flatten(1) for name, value in load_file(path).items()}


def measure(teacher: StableDiffusionPipeline, factors: dict[str, torch.Tensor], captions: list[str]) -> Score:
    """Draw captions in 4 steps with the LoRA merged, and count the right ones; the teacher's UNet changes."""
    base = {name: weight for name, weight in teacher.unet.named_parameters() if weight.ndim > 1}
    with torch.no_grad():
        teacher.unet.load_state_dict(merge(base, factors), strict=False)
    teacher.scheduler = LCMScheduler.from_config(teacher.scheduler.config)
    return score_pictures(captions, draw_captions(teacher, captions, seed=0, steps=4, guidance_scale=1.0))


if __name__ == "__main__":
    main()
