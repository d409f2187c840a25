"""The demo's few-step LoRA: the script that trains it, with a few steps, and the file that is shipped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from olivelike.data import demo_few_steps_lora
from olivelike.model.few_steps import few_steps_of_metadata
from olivelike.sources.adapters.open_lora import open_lora
from tools.train_demo import few_steps
from tools.train_demo.captions.evaluation import random_captions, score_pictures
from tools.train_demo.captions.scenes import Scene


@pytest.fixture(scope="module")
def teacher(one_torch_thread):
    return few_steps.load_demo()


@pytest.fixture(scope="module")
def out(teacher, tmp_path_factory):
    """A folder with short courses and what two steps of training leave."""
    out = tmp_path_factory.mktemp("few_steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_steps, "_BATCH", 4)
        patch.setattr(few_steps, "STARTS", ((999, 2, 0.5), (259, 2, 0.5)))
        courses = few_steps.make_courses(teacher, out, 2, seed=0)
        factors = few_steps.distil(teacher, courses, out, steps=2, seed=0)
        few_steps.write_lora(teacher.unet, factors, out / "demo_lcm.safetensors")
        resumed = few_steps.distil(teacher, courses, out, steps=2, seed=0)
    assert all(torch.equal(resumed[name], factor) for name, factor in factors.items())
    written = few_steps.read_lora(out / "demo_lcm.safetensors")
    assert all(torch.equal(written[name], factor.half().float()) for name, factor in factors.items())
    assert any(factor.abs().max() > 0 for name, factor in factors.items() if "lora_B" in name)
    return out


def test_some_drawings_have_another_colour_than_the_caption():
    rng, scene = np.random.default_rng(0), Scene("circle", "red", "blue", "small", "left")
    drawn = [few_steps.recolored(scene, rng) for _ in range(100)]
    assert {replace(one, color="red") for one in drawn} == {scene}
    assert 10 < sum(one != scene for one in drawn) < 60
    assert "blue" not in {one.color for one in drawn}


def test_courses_end_where_the_teacher_draws_what_is_asked_for(teacher, out):
    state = torch.load(out / "courses-1.pt", weights_only=True)
    assert state["timesteps"] == [259, 130]
    assert len(state["captions"]) == len(state["ends"]) == state["points"].shape[1] > 0
    pictures = few_steps.as_pictures(teacher.vae.decode(state["ends"] / teacher.vae.config.scaling_factor).sample)
    assert score_pictures(state["captions"], pictures).share == 1


@pytest.mark.slow
def test_a_seed_gives_the_same_factors_again(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(few_steps, "_BATCH", 4)
    monkeypatch.setattr(few_steps, "STARTS", ((259, 2, 0.5),))
    courses = few_steps.make_courses(teacher, tmp_path, 2, seed=0)
    folders = [tmp_path / name for name in ("one", "same")]
    for folder in folders:
        folder.mkdir()
    one, same = (few_steps.distil(teacher, courses, folder, steps=2, seed=0) for folder in folders)
    assert all(torch.equal(same[name], factor) for name, factor in one.items())


@pytest.mark.parametrize("shipped", [False, True])
def test_the_lora_says_what_it_is(out, shipped):
    lora = open_lora(demo_few_steps_lora() if shipped else out / "demo_lcm.safetensors")
    told = few_steps_of_metadata(lora.metadata)
    assert told is not None
    assert (told.kind, told.steps) == ("lcm", 4)
    assert lora.components == {"unet"}
    assert lora.path.stat().st_size < 6e6


@pytest.mark.slow
def test_93_of_100_captions_are_drawn_right_in_4_steps():
    from diffusers import LCMScheduler

    pipeline = few_steps.load_demo()
    pipeline.load_lora_weights(demo_few_steps_lora())
    pipeline.scheduler = LCMScheduler.from_config(pipeline.scheduler.config)
    captions = random_captions(200, seed=1001)
    drawn = few_steps.draw_captions(pipeline, captions, seed=0, steps=4, guidance_scale=1.0)
    score = score_pictures(captions, drawn)
    assert score.share >= 0.93, score
