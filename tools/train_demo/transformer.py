"""Trains the transformer demo from nothing: `python -m tools.train_demo.transformer OUT`.

A pipeline of Z-Image's classes at small widths that draws the scenes of the demo: an autoencoder with 16 channels that
begins with the demo's weights, Qwen3 and the transformer together, by flow matching. Each stage is saved in OUT every
few minutes and resumed from there. The result is `OUT/pipeline`, a diffusers folder in float16.

On two cores of a CPU that takes some hours. On a GPU minutes suffice:
`python -m tools.train_demo.transformer OUT --device cuda --batch 512 --steps 20000 --minutes 5`. A seed makes the same
weights on the same machine; with `--minutes` they depend on its speed, too.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import AutoencoderKL, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

from olivelike.data import demo_folder
from tools.train_demo.captions.captions import partial_caption
from tools.train_demo.captions.evaluation import random_captions, score_pictures
from tools.train_demo.chat_tokenizer import chat_tokens, write_chat_tokenizer
from tools.train_demo.checkpoint import Checkpoint, learning_rate
from tools.train_demo.latents import Latents, encode_scenes
from tools.train_demo.vae import train_vae
from tools.train_demo.writing import write_json, write_network

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LOG = logging.getLogger("tools.train_demo.transformer")

_DIFFUSERS = "0.36.0"
_CHANNELS = 16
TRANSFORMER: dict[str, Any] = {
    "_class_name": "ZImageTransformer2DModel",
    "_diffusers_version": _DIFFUSERS,
    "all_f_patch_size": [1],
    "all_patch_size": [2],
    "axes_dims": [8, 12, 12],
    "axes_lens": [1024, 512, 512],
    "cap_feat_dim": 64,
    "dim": 128,
    "in_channels": _CHANNELS,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 5,
    "n_refiner_layers": 1,
    "norm_eps": 1e-05,
    "qk_norm": True,
    "rope_theta": 256.0,
    "t_scale": 1000.0,
}
TEXT_ENCODER: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 192,
    "max_position_embeddings": 512,
    "max_window_layers": 4,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "use_cache": True,
    "use_sliding_window": False,
}
SCHEDULER: dict[str, Any] = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "_diffusers_version": _DIFFUSERS,
    "num_train_timesteps": 1000,
    "shift": 1.5,
    "use_dynamic_shifting": False,
}
INDEX: dict[str, Any] = {
    "_class_name": "ZImagePipeline",
    "_diffusers_version": _DIFFUSERS,
    "is_distilled": False,
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3Model"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "ZImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}

_PEAK_RATE = 1.5e-3
_AVERAGE = 0.999
_DROPPED_CAPTIONS = 0.1
_CAPTIONS = 8
"""Forms of each scene's caption, made once: making them anew takes longer than a step of a GPU."""
_LOGIT_NORMAL = 0.5
"""Part of the shares of noise that is logit-normal; the others lie as those of the sampler's steps do."""
_SAVE_SECONDS = 60.0
_UNIT = 32
"""Tokens of text and of pictures are filled up to a multiple of this, which is enough for every caption."""
_SIDE = 4
"""Patches along a side of 64 pixels."""


@dataclass(frozen=True)
class Networks:
    """What learns in the second stage."""

    text_encoder: Qwen3Model
    transformer: ZImageTransformer2DModel

    def both(self) -> tuple[torch.nn.Module, ...]:
        """Return the networks in a fixed order."""
        return (self.text_encoder, self.transformer)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return all weights of both."""
        return [parameter for network in self.both() for parameter in network.parameters()]


@dataclass(frozen=True)
class Scaled:
    """Latents as the transformer sees them: `(latents - shift) * scale`."""

    latents: Latents
    shift: float
    scale: float


@dataclass(frozen=True)
class Course:
    """How long the second stage takes, and what one step sees."""

    batch: int
    steps: int
    minutes: float | None
    """After so long it ends, with the learning rate at its lowest, if its steps are not done before."""
    seed: int


@dataclass(frozen=True)
class Captions:
    """Captions as the text encoder takes them."""

    tokens: torch.Tensor
    """int64, (…, 32)."""
    lengths: torch.Tensor
    """int64, (…): how many of the 32 are text's."""


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.transformer", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the stages' states and the result")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vae-steps", type=int, default=2000)
    parser.add_argument("--pictures", type=int, default=20_000, help="drawn pictures of the second stage")
    parser.add_argument("--steps", type=int, default=12_000, help="of the second stage")
    parser.add_argument("--minutes", type=float, help="bound of the second stage's time, to which its course is fitted")
    parser.add_argument("--batch", type=int, default=64, help="of the second stage")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--counted", type=int, default=200, help="captions that are drawn and counted at the end")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(chosen.threads)
    if chosen.device != "cpu":
        torch.set_float32_matmul_precision("high")
    chosen.out.mkdir(parents=True, exist_ok=True)

    folder = chosen.out / "pipeline"
    tokenizer = write_chat_tokenizer(folder / "tokenizer")
    write_json(folder / "model_index.json", INDEX)
    write_json(folder / "scheduler" / "scheduler_config.json", SCHEDULER)
    vae, config = _autoencoder(chosen.out, chosen.vae_steps, chosen.seed, chosen.device)
    latents = encode_scenes(vae, chosen.out, chosen.pictures, chosen.seed)
    scaled = Scaled(latents, round(float(latents.mean.mean()), 4), round(latents.scaling_factor, 4))
    config |= {"scaling_factor": scaled.scale, "shift_factor": scaled.shift}
    write_network(folder / "vae", config, vae.state_dict())
    course = Course(chosen.batch, chosen.steps, chosen.minutes, chosen.seed)
    networks = _train(tokenizer, scaled, chosen.out, course)
    text_config = TEXT_ENCODER | {"vocab_size": tokenizer.get_vocab_size()}
    write_network(folder / "text_encoder", text_config, networks.text_encoder.state_dict())
    write_network(folder / "transformer", TRANSFORMER, networks.transformer.state_dict())
    captions = random_captions(chosen.counted, chosen.seed)
    for steps, guidance in ((20, 1.0), (20, 3.0), (8, 2.0)):
        pictures = draw(networks, vae, tokenizer, scaled, captions, steps=steps, guidance=guidance, seed=chosen.seed)
        score = score_pictures(captions, pictures)
        LOG.info("%d steps, CFG %.1f: %d of %d right; %s", steps, guidance, score.right, score.pictures, score.shares)


def _autoencoder(out: Path, steps: int, seed: int, device: str) -> tuple[AutoencoderKL, dict[str, Any]]:
    trained = AutoencoderKL.from_pretrained(demo_folder() / "vae")
    config = {key: value for key, value in trained.config.items() if not key.startswith("_")}
    config = {
        "_class_name": "AutoencoderKL",
        "_diffusers_version": _DIFFUSERS,
        **config,
        "latent_channels": _CHANNELS,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }
    vae = train_vae(
        config, out, encoder_steps=steps // 2, steps=steps, seed=seed, begin=trained.state_dict(), device=device
    )
    return vae, config


def make_networks(tokens: int, seed: int) -> Networks:
    """Return both networks with random weights, the last layer with zeros."""
    torch.manual_seed(seed)
    text = Qwen3Model(Qwen3Config(**TEXT_ENCODER, vocab_size=tokens))
    transformer = ZImageTransformer2DModel.from_config(TRANSFORMER)
    for pad in (transformer.x_pad_token, transformer.cap_pad_token):
        torch.nn.init.normal_(pad.data, std=0.02)
    last = transformer.all_final_layer["2-1"].linear
    torch.nn.init.zeros_(last.weight.data)
    torch.nn.init.zeros_(last.bias.data)
    return Networks(text, transformer)


def _train(tokenizer: Tokenizer, scaled: Scaled, out: Path, course: Course) -> Networks:
    device = scaled.latents.mean.device
    networks = make_networks(tokenizer.get_vocab_size(), course.seed)
    for network in networks.both():
        network.to(device)
    average = copy.deepcopy(networks)
    optimizer = torch.optim.AdamW(
        networks.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.99), weight_decay=1e-2, fused=True
    )
    captions = _captions(tokenizer, scaled.latents, course.seed)
    checkpoint = Checkpoint(out / "transformer.pt")
    start = 0
    if state := checkpoint.load():
        for network, weights in zip((*networks.both(), *average.both()), state["weights"], strict=True):
            network.load_state_dict(weights)
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    running = torch.zeros((), device=device)
    began = saved = time.monotonic()
    step = position = start
    while position < course.steps:
        torch.manual_seed(course.seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(position, course.steps, _PEAK_RATE)
        loss = _loss(networks, captions, scaled, course.batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(networks.parameters(), 1.0)
        optimizer.step()
        share = min(_AVERAGE, (step + 1) / (step + 10))
        with torch.no_grad():
            for old, new in zip(average.parameters(), networks.parameters(), strict=True):
                old.lerp_(new, 1 - share)
            running.lerp_(loss, max(0.02, 1 / (step - start + 1)))
        if (step - start) % 50 == 0:
            LOG.info("transformer %d, at %d of %d: loss %.4f", step, position, course.steps, running.item())
        step += 1
        now = time.monotonic()
        position = step
        if course.minutes is not None:
            position = max(step, start + int((course.steps - start) * (now - began) / (60 * course.minutes)))
        if now - saved > _SAVE_SECONDS or position >= course.steps:
            weights = [network.state_dict() for network in (*networks.both(), *average.both())]
            checkpoint.save(
                {"weights": weights, "optimizer": optimizer.state_dict(), "step": min(position, course.steps)}
            )
            saved = now
    return average


def _loss(networks: Networks, captions: Captions, scaled: Scaled, batch: int) -> torch.Tensor:
    """Squared error of the velocity from noise to picture (https://arxiv.org/abs/2210.02747).

    Half of the shares of noise are logit-normal (https://arxiv.org/abs/2403.03206), which hardly sees the noisiest,
    where shape and colours are decided. The row after the scenes' is the empty caption.
    """
    mean, std = scaled.latents.mean, scaled.latents.std
    device = mean.device
    chosen = torch.randint(len(mean), (batch,), device=device)
    form = torch.randint(_CAPTIONS, (batch,), device=device)
    told = torch.where(torch.rand(batch, device=device) < _DROPPED_CAPTIONS, len(mean), chosen)
    clean = (mean[chosen] + std[chosen] * torch.randn_like(mean[chosen]) - scaled.shift) * scaled.scale
    noise = torch.randn_like(clean)
    even = torch.rand(batch, device=device)
    sigma = torch.where(
        torch.rand(batch, device=device) < _LOGIT_NORMAL,
        torch.sigmoid(torch.randn(batch, device=device) + 0.3),
        SCHEDULER["shift"] * even / (1 + (SCHEDULER["shift"] - 1) * even),
    )
    noised = torch.lerp(clean, noise, sigma[:, None, None, None])
    texts = Captions(captions.tokens[told, form], captions.lengths[told, form])
    velocity = predict(networks, noised, 1 - sigma, encode(networks, texts), texts.lengths)
    return (velocity - (clean - noise)).square().mean()


def _captions(tokenizer: Tokenizer, latents: Latents, seed: int) -> Captions:
    """Return several forms of each scene's caption, and at last those of none: (scenes + 1, forms, 32)."""
    rng = np.random.default_rng((seed, 5))
    texts = [partial_caption(scene, rng) for scene in latents.scenes for _ in range(_CAPTIONS)] + [""] * _CAPTIONS
    flat = tokenize(tokenizer, texts, latents.mean.device)
    return Captions(flat.tokens.view(-1, _CAPTIONS, _UNIT), flat.lengths.view(-1, _CAPTIONS))


def tokenize(tokenizer: Tokenizer, captions: list[str], device: torch.device) -> Captions:
    """Return the tokens of captions, filled up to 32."""
    rows = [chat_tokens(tokenizer, caption) for caption in captions]
    filled = torch.tensor([row + [0] * (_UNIT - len(row)) for row in rows])
    return Captions(filled.to(device), torch.tensor([len(row) for row in rows]).to(device))


def encode(networks: Networks, captions: Captions) -> torch.Tensor:
    """Return states before the last layer: (captions, 32, width)."""
    states: torch.Tensor = networks.text_encoder(captions.tokens, output_hidden_states=True).hidden_states[-2]
    return states


@functools.cache
def _positions(height: int, width: int, device: torch.device) -> torch.Tensor:
    """Return places of picture tokens, of those that fill up, and of text tokens: int32, (64, 3)."""
    ids = torch.zeros(2 * _UNIT, 3, dtype=torch.int32)
    ids[: height * width] = torch.tensor([[_UNIT + 1, row, column] for row in range(height) for column in range(width)])
    ids[_UNIT:, 0] = torch.arange(_UNIT) + 1
    return ids.to(device)


def predict(
    networks: Networks, sample: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return what the transformer's own forward does, for texts of several lengths at once."""
    net = networks.transformer
    batch, channels, height, width = sample.shape
    h, w = height // 2, width // 2
    adaln = net.t_embedder(timestep * net.t_scale)
    x = sample.reshape(batch, channels, h, 2, w, 2).permute(0, 2, 4, 3, 5, 1).reshape(batch, h * w, 4 * channels)
    x = net.all_x_embedder["2-1"](x)
    x = torch.cat([x, net.x_pad_token.expand(batch, _UNIT - h * w, -1)], dim=1)
    real = (torch.arange(_UNIT, device=sample.device) < lengths[:, None])[..., None]
    text = torch.where(real, net.cap_embedder(states), net.cap_pad_token)
    rope = net.rope_embedder(_positions(h, w, sample.device))[None].expand(batch, -1, -1)
    for layer in net.noise_refiner:
        x = layer(x, None, rope[:, :_UNIT], adaln)
    for layer in net.context_refiner:
        text = layer(text, None, rope[:, _UNIT:])
    both = torch.cat([x, text], dim=1)
    for layer in net.layers:
        both = layer(both, None, rope, adaln)
    out = net.all_final_layer["2-1"](both, c=adaln)[:, : h * w]
    return out.reshape(batch, h, w, 2, 2, channels).permute(0, 5, 1, 3, 2, 4).reshape(sample.shape)


@torch.no_grad()
def draw(
    networks: Networks,
    vae: AutoencoderKL,
    tokenizer: Tokenizer,
    scaled: Scaled,
    captions: list[str],
    *,
    steps: int,
    guidance: float,
    seed: int,
) -> np.ndarray:
    """Draw one picture for each caption: uint8 RGB, (N, 64, 64, 3)."""
    x = torch.randn(len(captions), _CHANNELS, 2 * _SIDE, 2 * _SIDE, generator=torch.Generator().manual_seed(seed))
    x = x.to(vae.device)
    sigmas = np.linspace(1.0, 1 / steps, steps)
    shift = SCHEDULER["shift"]
    sigmas = np.append(shift * sigmas / (1 + (shift - 1) * sigmas), 0.0)
    asked = tokenize(tokenizer, captions, vae.device)
    empty = tokenize(tokenizer, [""] * len(captions), vae.device)
    asked_states, empty_states = encode(networks, asked), encode(networks, empty)
    for sigma, following in itertools.pairwise(sigmas):
        timestep = torch.full((len(captions),), 1 - sigma, dtype=torch.float32, device=vae.device)
        velocity = predict(networks, x, timestep, asked_states, asked.lengths)
        if guidance != 1.0:
            other = predict(networks, x, timestep, empty_states, empty.lengths)
            velocity = other + guidance * (velocity - other)
        x = x + float(sigma - following) * velocity
    pictures = vae.decode(x / scaled.scale + scaled.shift).sample.clamp(-1, 1)
    return np.rint((pictures.permute(0, 2, 3, 1).cpu().numpy() + 1) * 127.5).astype(np.uint8)


if __name__ == "__main__":
    main()
