"""Teaches the shipped text encoder and UNet places: `python -m tools.train_demo.places OUT`.

Where a shape stands is decided at the noisiest timesteps, where the loss of epsilon hardly weighs errors of the
picture. The second stage ends with a text encoder that keeps a place in its own token, where colours and shapes reach
all tokens behind theirs. So

1. the text encoder learns to give what it gave, plus a vector of its own for each place, from the place's word on;
2. the UNet's lower levels learn from ideal guesses at the noisiest timesteps alone;
3. then at all timesteps. The first level, which passes the noise on, stands still: its errors count 200 times there;
4. the whole UNet learns with milder weights, which sharpens outlines again, and then with milder ones still;
5. guided predictions learn, too, and at last more often from scenes that are hard to draw. Where the noise is low the
   latents show what the caption says, and guidance only enlarges what the two predictions are off.

What is kept is the mean of the weights behind the last three parts: one drew other shapes wrong than the next.

An ideal guess is the mean of the data set's pictures that fit the caption, weighted by how well they fit the noised
latents: what the loss of epsilon leads to, without its variance (https://arxiv.org/abs/2302.00670).

The autoencoder and the safety checker stay. The result is `OUT/pipeline/unet` and `OUT/pipeline/text_encoder`.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from diffusers import DDPMScheduler
from diffusers.models.attention_processor import AttnProcessor

from olivelike.data import demo_folder
from tools.train_demo.captions.captions import Mention, partial_caption, phrase
from tools.train_demo.captions.evaluation import random_captions, score_pictures
from tools.train_demo.captions.scenes import POSITIONS, Scene, random_scene
from tools.train_demo.checkpoint import Checkpoint, learning_rate
from tools.train_demo.configs import DEMO_SCHEDULER
from tools.train_demo.denoiser import SHORT_TOKENS, Denoiser, blend, weights_of_noise
from tools.train_demo.few_steps import load_demo
from tools.train_demo.latents import Latents, encode_scenes
from tools.train_demo.sampling import draw_captions
from tools.train_demo.writing import write_network

if TYPE_CHECKING:
    from transformers import CLIPTextModel, CLIPTokenizer

LOG = logging.getLogger("tools.train_demo.places")

_BATCH = 64
_TOKENS = 77
_TEXT_RATE = 2e-3
_BETAS = (0.9, 0.999)
"""At weights of 200 a shorter memory of squares than this drowns what is learned in noise."""
_NORM = 2.5
"""Of a place's vector, where a token's has 6."""
_RAREST = slice(2, 2 + len(POSITIONS))
"""Directions that tokens hardly use, so that what the UNet reads from them stays."""
_USES = 600
"""Captions that show which directions those are."""
_NOISY = 700
_CLEAR = 600
"""Below this timestep noised latents show what is drawn, and guidance is to change nothing."""
_GUIDANCE, _GUIDED_SHARE = 5.0, 0.2
_SIZES_KEPT, _GUIDED_KEPT = 0.25, 0.35
_AVERAGE = 0.99
_LEARNING = (
    "down_blocks.1",
    "down_blocks.2",
    "down_blocks.3",
    "mid_block",
    "up_blocks.0",
    "up_blocks.1",
    "up_blocks.2",
)
_SAVE_EVERY = 50
_SHORT_SHARE = 0.9
# How often a caption of the second part names what a scene has.
_NO_CAPTION = 0.12
_NAMED = 0.85
_SIZE_NAMED = 0.75
_CENTER_NAMED = 0.5


@dataclass(frozen=True)
class PlacesPlan:
    """How long each part takes, and the seed of all."""

    seed: int
    text_steps: int = 600
    noisy_steps: int = 200
    places_steps: int = 300
    details_steps: int = 240
    sizes_steps: int = 900
    guided_steps: int = 400
    hard_steps: int = 500


@dataclass(frozen=True)
class Part:
    """One of the parts of the UNet's training."""

    name: str
    steps: int
    rate: float
    noisy: float
    """Share of the timesteps that are drawn from the noisiest alone."""
    most: float
    """The largest weight of a timestep."""
    whole: bool = True
    """Whether all levels learn."""
    guided: bool = False
    """Whether guided predictions learn, too."""
    hard: bool = False
    """Whether scenes that are hard to draw come more often."""


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.places", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the states and the result")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=12_000, help="drawn pictures to learn from")
    for name, steps in asdict(PlacesPlan(0)).items():
        if name != "seed":
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=steps)
    chosen = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(chosen.pop("threads"))
    out, pictures = chosen.pop("out"), chosen.pop("pictures")
    out.mkdir(parents=True, exist_ok=True)
    plan = PlacesPlan(**chosen)
    demo = load_demo()
    latents = encode_scenes(demo.vae, out, pictures, plan.seed)
    networks = learn_places(Denoiser(demo.text_encoder, demo.unet), demo.tokenizer, latents, out, plan)
    for name, network in (("unet", networks.unet), ("text_encoder", networks.text_encoder)):
        config = json.loads((demo_folder() / name / "config.json").read_bytes())
        write_network(out / "pipeline" / name, config, network.state_dict())
    demo.unet, demo.text_encoder = networks.unet, networks.text_encoder
    captions = random_captions(200, plan.seed)
    score = score_pictures(captions, draw_captions(demo, captions, seed=plan.seed))
    LOG.info("captions drawn right: %d of %d; by feature %s", score.right, score.pictures, score.shares)


def learn_places(
    networks: Denoiser, tokenizer: CLIPTokenizer, latents: Latents, out: Path, plan: PlacesPlan
) -> Denoiser:
    """Train both networks until the plan's steps, from the last saves in `out`; deterministic for a seed.

    Returns:
        The mean of the running averages behind the last three parts.
    """
    learn_place_words(networks.text_encoder, tokenizer, out, steps=plan.text_steps, seed=plan.seed)
    parts = (
        Part("noisy", plan.noisy_steps, rate=1e-3, noisy=1.0, most=1000.0, whole=False),
        Part("places", plan.places_steps, rate=8e-4, noisy=0.5, most=1000.0, whole=False),
        Part("details", plan.details_steps, rate=5e-4, noisy=0.3, most=60.0),
        Part("sizes", plan.sizes_steps, rate=4e-4, noisy=0.3, most=30.0),
        Part("guided", plan.guided_steps, rate=4e-4, noisy=0.2, most=10.0, guided=True),
        Part("hard", plan.hard_steps, rate=5e-4, noisy=0.15, most=10.0, guided=True, hard=True),
    )
    ends = [networks]
    for part in parts:
        begun, checkpoint = copy.deepcopy(ends[-1]), Checkpoint(out / f"{part.name}.pt")
        ends.append(_learn_to_place(begun, tokenizer, latents, checkpoint, part, plan.seed))
    sizes, guided, hard = ends[-3:]
    blend(guided, hard, _GUIDED_KEPT / (1 - _SIZES_KEPT))
    blend(sizes, guided, _SIZES_KEPT)
    return sizes


def learn_place_words(
    text_encoder: CLIPTextModel, tokenizer: CLIPTokenizer, out: Path, *, steps: int, seed: int
) -> None:
    """Teach the text encoder to tell a place in all tokens from its word on, and else what it told before."""
    before = copy.deepcopy(text_encoder).requires_grad_(requires_grad=False)
    checkpoint = Checkpoint(out / "place_words.pt")
    first = 0
    optimizer = torch.optim.AdamW(
        text_encoder.parameters(), lr=_TEXT_RATE, betas=(0.9, 0.99), weight_decay=0.0, fused=True
    )
    # Made once: a resumed run begins from other weights than these.
    told = _place_vectors(before, tokenizer, seed)
    if state := checkpoint.load():
        text_encoder.load_state_dict(state["text_encoder"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    words = {place: tokenizer(place).input_ids[1] for place in POSITIONS}
    for step in range(first, steps):
        rng = np.random.default_rng((seed, 10, step))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, _TEXT_RATE, warmup=30)
        captions = [
            "" if rng.random() < _NO_CAPTION else partial_caption(random_scene(rng), rng) for _ in range(_BATCH)
        ]
        ids = _ids(tokenizer, captions, _TOKENS if step % 4 == 0 else SHORT_TOKENS)
        with torch.no_grad():
            wanted = before(ids).last_hidden_state
        for place, vector in zip(POSITIONS, told, strict=True):
            wanted = wanted + ((ids == words[place]).cumsum(1) > 0)[..., None] * vector
        loss = (text_encoder(ids).last_hidden_state - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(text_encoder.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            LOG.info("place words %d of %d: loss %.4f", step, steps, loss.item())
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
            state = {"text_encoder": text_encoder.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            checkpoint.save(state)
    text_encoder.requires_grad_(requires_grad=False)


@torch.no_grad()
def _place_vectors(text_encoder: CLIPTextModel, tokenizer: CLIPTokenizer, seed: int) -> torch.Tensor:
    """Return a vector for each place, float32 (5, 64), along what tokens differ in least."""
    rng = np.random.default_rng((seed, 10))
    ids = _ids(tokenizer, [partial_caption(random_scene(rng), rng) for _ in range(_USES)], _TOKENS)
    tokens = text_encoder(ids).last_hidden_state[:, 3:].flatten(0, 1)
    _, directions = torch.linalg.eigh((tokens - tokens.mean(0)).T.cov())
    return directions.T[_RAREST] * _NORM


def _ids(tokenizer: CLIPTokenizer, captions: list[str], length: int) -> torch.Tensor:
    tokens = tokenizer(captions, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    ids: torch.Tensor = tokens.input_ids
    return ids


def _learn_to_place(
    networks: Denoiser, tokenizer: CLIPTokenizer, latents: Latents, checkpoint: Checkpoint, part: Part, seed: int
) -> Denoiser:
    unet = networks.unet
    unet.set_attn_processor(AttnProcessor())
    for name, weight in unet.named_parameters():
        weight.requires_grad_(part.whole or "attn2" in name or name.startswith(_LEARNING))
    average = copy.deepcopy(networks)
    learning = [weight for weight in unet.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=part.rate, betas=_BETAS, weight_decay=1e-2, fused=True)
    first = 0
    if state := checkpoint.load():
        networks.load_state_dict(state["networks"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    ideal = IdealGuesses(latents)
    running = 0.0
    for step in range(first, part.steps):
        rng = np.random.default_rng((seed, 11, step))
        torch.manual_seed(seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, part.steps, part.rate, warmup=50)
        length = SHORT_TOKENS if step < _SHORT_SHARE * part.steps else _TOKENS
        loss = _loss(networks, tokenizer, latents, ideal, rng, length, part)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        blend(average, networks, min(_AVERAGE, (step + 1) / (step + 10)))
        running += 0.02 * (loss.item() - running) if running else loss.item()
        if step % 50 == 0:
            LOG.info("%s %d of %d: loss %.4f", part.name, step, part.steps, running)
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == part.steps:
            state = {"networks": networks.state_dict(), "average": average.state_dict()}
            checkpoint.save({**state, "optimizer": optimizer.state_dict(), "step": step + 1})
    return average


def _loss(
    networks: Denoiser,
    tokenizer: CLIPTokenizer,
    latents: Latents,
    ideal: IdealGuesses,
    rng: np.random.Generator,
    length: int,
    part: Part,
) -> torch.Tensor:
    noising = DDPMScheduler.from_config(DEMO_SCHEDULER)
    chosen = rng.choice(len(latents.scenes), size=_BATCH, p=_shares(latents.scenes) if part.hard else None)
    mentions = [_mention(latents.scenes[index], rng) for index in chosen]
    captions = [phrase(mention, rng) if mention != Mention() or rng.random() < 0.3 else "" for mention in mentions]
    context = networks.text_encoder(_ids(tokenizer, captions, length)).last_hidden_state
    clean = latents.mean[chosen] + latents.std[chosen] * torch.randn(latents.mean[chosen].shape)
    clean = clean * latents.scaling_factor
    noise = torch.randn_like(clean)
    timesteps = torch.randint(0, noising.config.num_train_timesteps, (_BATCH,))
    noisy = torch.randint(_NOISY, noising.config.num_train_timesteps, (_BATCH,))
    timesteps = torch.where(torch.rand(_BATCH) < part.noisy, noisy, timesteps)
    noised = noising.add_noise(clean, noise, timesteps)
    kept = noising.alphas_cumprod[timesteps]
    for index in torch.nonzero(timesteps >= _NOISY).flatten().tolist():
        guess = ideal.guess(noised[index], kept[index], mentions[index])
        noise[index] = (noised[index] - kept[index].sqrt() * guess) / (1 - kept[index]).sqrt()
    predicted = networks.unet(noised, timesteps, context).sample
    errors = (predicted - noise).square().mean(dim=(1, 2, 3))
    if part.guided:
        clear = timesteps < _CLEAR
        empty = networks.text_encoder(_ids(tokenizer, [""], length)).last_hidden_state.expand(int(clear.sum()), -1, -1)
        without = networks.unet(noised[clear], timesteps[clear], empty).sample
        led = without + _GUIDANCE * (predicted[clear] - without)
        errors[clear] = errors[clear] + _GUIDED_SHARE * (led - noise[clear]).square().mean(dim=(1, 2, 3))
    return (weights_of_noise(kept, part.most) * errors).mean()


def _shares(scenes: list[Scene]) -> np.ndarray:
    """Return how often each scene is to be drawn: two and three times as often what is hard to draw."""
    hard = np.array([1.0 + (scene.shape in {"star", "skull"}) + (scene.size == "small") for scene in scenes])
    return hard / hard.sum()


def _mention(scene: Scene, rng: np.random.Generator) -> Mention:
    """Return what a caption names: places more often than captions of the first course do."""

    def kept(value: str, chance: float) -> str | None:
        return value if rng.random() < chance else None

    if rng.random() < _NO_CAPTION:
        return Mention()
    return Mention(
        shape=kept(scene.shape, _NAMED),
        color=kept(scene.color, _NAMED),
        background=kept(scene.background, _NAMED),
        size=kept(scene.size, _SIZE_NAMED) if scene.size != "medium" else None,
        position=kept(scene.position, _NAMED if scene.position != "center" else _CENTER_NAMED),
    )


class IdealGuesses:
    """What a denoiser that knew the data set would see in noised latents."""

    def __init__(self, latents: Latents) -> None:
        self._pictures = (latents.mean * latents.scaling_factor).flatten(1)
        features = {
            field.name: np.array([getattr(scene, field.name) for scene in latents.scenes]) for field in fields(Mention)
        }
        self._fitting = {
            (name, value): values == value for name, values in features.items() for value in set(values.tolist())
        }

    def guess(self, noised: torch.Tensor, kept: torch.Tensor, mention: Mention) -> torch.Tensor:
        """Return the expectation of the picture.

        Args:
            noised: float32, (4, 8, 8).
            kept: `alphas_cumprod` of its timestep.
            mention: what its caption says; all pictures of the data set that this fits could be it.
        """
        fitting = np.ones(len(self._pictures), bool)
        for name, value in asdict(mention).items():
            if value is not None:
                fitting = fitting & self._fitting[name, value]
        pictures = self._pictures[torch.from_numpy(np.flatnonzero(fitting))]
        distances = (noised.flatten() - kept.sqrt() * pictures).square().sum(1)
        likely = torch.softmax(-distances / (2 * (1 - kept)), dim=0)
        return (likely @ pictures).view_as(noised)


if __name__ == "__main__":
    main()
