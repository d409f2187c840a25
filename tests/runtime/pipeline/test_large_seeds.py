"""Seeds of 64 bits, as ComfyUI draws them: their noise is torch's, and their pictures' seeds count up."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from torch_pipelines import psnr

from olivelike.runtime import Request
from olivelike.runtime.pictures.picture_record import PictureRecord, a1111_text
from olivelike.runtime.pictures.recipe_text import parse_a1111
from olivelike.runtime.pipeline.latents import begin_batch, initial_noise, seed_of_attempt, step_noise

SEEDS = [2**32 - 1, 2**32, 2**53 + 1, 804822466654819, 2**63, 2**64 - 1]


def ask(seed, **more):
    return Request(("a red circle",), **{"steps": 2, "size": (32, 32), "seed": seed, **more})


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_that_of_torch(pipeline, seed):
    import torch

    drawn = initial_noise(begin_batch(ask(seed), pipeline.folder, [seed]), 4)
    wanted = torch.randn((1, 4, 16, 16), generator=torch.Generator().manual_seed(seed))
    assert np.array_equal(drawn, wanted)


def test_noise_of_steps_is_that_of_diffusers():
    import torch

    pytest.importorskip("torchsde")
    from diffusers.schedulers.scheduling_dpmsolver_sde import BrownianTreeNoiseSampler

    spans, seeds = np.array([[14.0, 3.0], [3.0, 0.5], [0.5, 0.0]]), (2**64 - 1, 804822466654819)
    schedule = SimpleNamespace(spans=spans, draws=np.array([True, True, False]))
    noise = step_noise(SimpleNamespace(schedule=schedule, seeds=seeds), (4, 8, 8))
    alone = [BrownianTreeNoiseSampler(torch.zeros(1, 4, 8, 8), 0.5, 14.0, seed) for seed in seeds]
    for call in (0, 1):
        times = [torch.tensor(one, dtype=torch.float32) for one in spans[call]]
        np.testing.assert_allclose(noise(call), torch.cat([one(*times) for one in alone]), rtol=0, atol=1e-6)
    assert noise(2) == 0


def test_pictures_count_up_and_are_those_of_single_seeds(pipeline):
    several = pipeline.generate(ask(2**64 - 1, num_images=2, batch_size=2, scheduler="Euler a"))
    assert [picture.seed for picture in several.pictures] == [2**64 - 1, 0]
    alone = pipeline.generate(ask(0, scheduler="Euler a"))
    assert psnr(several.pictures[1].image, alone.pictures[0].image) > 60


def test_pictures_that_are_drawn_again_have_the_seeds_that_they_had():
    assert seed_of_attempt(7, 2) == 2814710746


@pytest.mark.parametrize("seed", SEEDS)
def test_texts_carry_them(seed):
    assert (
        parse_a1111(a1111_text(PictureRecord("a", steps=4, seed=seed, sampler="Euler", width=8, height=8))).seed == seed
    )
