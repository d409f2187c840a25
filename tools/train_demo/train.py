"""Trains the demo pipeline from nothing: `python -m tools.train_demo.train OUT`.

Three stages, each saved in OUT every few minutes and resumed from there: the autoencoder, the text encoder with the
UNet, the safety checker. The result is `OUT/pipeline`, a diffusers folder in float16, scored on the way.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import CLIPTokenizer

from tools.train_demo.configs import DEMO_SCHEDULER, demo_configs
from tools.train_demo.denoiser import make_denoiser, train_denoiser
from tools.train_demo.examples import generate_examples
from tools.train_demo.latents import encode_scenes
from tools.train_demo.places import PlacesPlan, learn_places
from tools.train_demo.safety import train_safety_checker
from tools.train_demo.tokenizer import write_demo_tokenizer
from tools.train_demo.vae import train_vae
from tools.train_demo.writing import write_network, write_settings

LOG = logging.getLogger("tools.train_demo.train")


@dataclass(frozen=True)
class Plan:
    """How long each stage takes, and the seed of all of them."""

    seed: int
    encoder_steps: int
    vae_steps: int
    pictures: int
    denoiser_steps: int
    places: PlacesPlan
    generated: int
    safety_steps: int


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.train", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the stages' states and the result")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder-steps", type=int, default=7600)
    parser.add_argument("--vae-steps", type=int, default=12_400)
    parser.add_argument("--pictures", type=int, default=20_000, help="drawn pictures of the second stage")
    parser.add_argument("--denoiser-steps", type=int, default=6600)
    parser.add_argument("--generated", type=int, default=1000, help="generated pictures of the third stage")
    parser.add_argument("--safety-steps", type=int, default=4000)
    chosen = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(chosen.pop("threads"))
    train(chosen.pop("out"), Plan(**chosen, places=PlacesPlan(chosen["seed"])))


def train(out: Path, plan: Plan) -> None:
    """Run every stage that is not finished, and write each network as soon as it is."""
    folder = out / "pipeline"
    configs = demo_configs(write_demo_tokenizer(folder / "tokenizer"))
    tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer")
    write_settings(folder)

    vae = train_vae(configs["vae"], out, encoder_steps=plan.encoder_steps, steps=plan.vae_steps, seed=plan.seed)
    latents = encode_scenes(vae, out, plan.pictures, plan.seed)
    configs["vae"]["scaling_factor"] = round(latents.scaling_factor, 5)
    LOG.info("scaling factor %.5f", configs["vae"]["scaling_factor"])
    vae.register_to_config(scaling_factor=configs["vae"]["scaling_factor"])
    write_network(folder / "vae", configs["vae"], vae.state_dict())

    networks = train_denoiser(
        make_denoiser(configs, plan.seed), tokenizer, latents, DEMO_SCHEDULER, out,
        steps=plan.denoiser_steps, seed=plan.seed,
    )  # fmt: skip
    networks = learn_places(networks, tokenizer, latents, out, plan.places)
    write_network(folder / "unet", configs["unet"], networks.unet.state_dict())
    write_network(folder / "text_encoder", configs["text_encoder"], networks.text_encoder.state_dict())

    generated = generate_examples(networks, vae, tokenizer, out, plan.generated, plan.seed)
    checker = train_safety_checker(configs["safety_checker"], generated, out, steps=plan.safety_steps, seed=plan.seed)
    write_network(folder / "safety_checker", configs["safety_checker"], checker.state_dict())


if __name__ == "__main__":
    main()
