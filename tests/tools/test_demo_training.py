"""The training script, with a few steps of each stage."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPTokenizer

from tools.train_demo import configs, denoiser, examples, places, safety
from tools.train_demo.captions.drawing import draw_scenes
from tools.train_demo.checkpoint import learning_rate
from tools.train_demo.latents import encode_scenes
from tools.train_demo.places import PlacesPlan
from tools.train_demo.sampling import draw_captions
from tools.train_demo.tokenizer import write_demo_tokenizer
from tools.train_demo.train import Plan, train
from tools.train_demo.vae import train_vae

PLAN = Plan(
    seed=0, encoder_steps=1, vae_steps=2, pictures=64, denoiser_steps=2, generated=4, safety_steps=2,
    places=PlacesPlan(0, 2, 1, 1, 1, 1, 1, 1),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _little_networks_batches_and_pictures():
    with pytest.MonkeyPatch.context() as patch:
        for stage in (denoiser, places, safety):
            patch.setattr(stage, "_BATCH", 16)
        patch.setitem(configs._UNET, "layers_per_block", 1)
        patch.setattr(places, "_USES", 50)
        patch.setattr(examples, "draw_captions", lambda *drawn, **how: draw_captions(*drawn, **{**how, "steps": 2}))
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory, one_torch_thread) -> Path:
    out = tmp_path_factory.mktemp("training")
    train(out, PLAN)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_network_learns_and_is_saved_for_the_next_stage(tmp_path: Path, one_torch_thread) -> None:
    made = configs.demo_configs(write_demo_tokenizer(tmp_path / "tokenizer"))
    vae = train_vae(made["vae"], tmp_path, encoder_steps=1, steps=2, seed=0)
    latents = encode_scenes(vae, tmp_path, 8, 0)
    begun = denoiser.make_denoiser(made, 0)
    before = [weight.detach().clone() for weight in begun.parameters()]
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path / "tokenizer")
    denoiser.train_denoiser(begun, tokenizer, latents, configs.DEMO_SCHEDULER, tmp_path, steps=1, seed=0)
    assert not all(map(torch.equal, begun.parameters(), before))
    pictures = draw_scenes(latents.scenes, np.random.default_rng(0))
    drawn = examples.Examples(pictures, np.zeros(8, bool))
    safety.train_safety_checker(made["safety_checker"], drawn, tmp_path, steps=1, seed=0)
    assert {"vae.pt", "latents.pt", "denoiser.pt", "safety.pt"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_all_stages_make_a_pipeline_that_diffusers_loads(out: Path) -> None:
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(out / "pipeline", local_files_only=True)
    assert pipeline.vae.config.scaling_factor > 0
    assert next(pipeline.unet.parameters()).dtype == torch.float32


@pytest.mark.slow
def test_finished_stages_are_not_trained_again(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = contents(out / "pipeline")
    with caplog.at_level(logging.INFO):
        train(out, PLAN)
    assert contents(out / "pipeline") == before
    assert not [message for message in caplog.messages if "loss" in message or "L1" in message]


@pytest.mark.slow
def test_a_seed_gives_the_same_weights_again(out: Path, tmp_path: Path) -> None:
    train(tmp_path, PLAN)
    assert contents(tmp_path / "pipeline") == contents(out / "pipeline")


def test_the_learning_rate_rises_then_falls_to_a_hundredth() -> None:
    rates = [learning_rate(step, 1000, 2.0) for step in range(1000)]
    assert rates.index(max(rates)) in {99, 100}
    assert max(rates) == pytest.approx(2.0)
    assert rates[0] == pytest.approx(0.02)
    assert rates[-1] == pytest.approx(0.02, rel=0.01)
