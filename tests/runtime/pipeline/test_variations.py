"""Pictures between two seeds: the arc of A1111's `modules/rng.py`, whose numbers are pinned here."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch_pipelines import psnr

from olivelike.errors import UsageError
from olivelike.runtime import Request
from olivelike.runtime.pipeline.latents import begin_batch, draw_noise, generators, initial_noise


def ask(**more):
    return Request(**{"prompts": ("a red circle",), "steps": 2, "seed": 5, "size": (32, 32), **more})


def noise_between(pipeline, share, seed=5, other=9):
    request = ask(variation_seed=other, variation_strength=share)
    return initial_noise(begin_batch(request, pipeline.folder, [seed], [other]), 4)


def test_the_noise_lies_on_the_arc_between_two_seeds_column_by_column(pipeline):
    first, other = (draw_noise((4, 16, 16), generators([seed]))[0] for seed in (5, 9))
    mixed = noise_between(pipeline, 0.3)[0]
    for channel, column in ((0, 0), (3, 15)):
        start, end, found = (one[channel, :, column].astype(float) for one in (first, other, mixed))
        angle = math.acos(start @ end / np.linalg.norm(start) / np.linalg.norm(end))
        wanted = (math.sin(0.7 * angle) * start + math.sin(0.3 * angle) * end) / math.sin(angle)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert abs(float(mixed.std()) - 1) < 0.1


def test_at_the_ends_there_is_one_seed_alone(pipeline):
    np.testing.assert_allclose(noise_between(pipeline, 1.0), draw_noise((4, 16, 16), generators([9])), atol=1e-6)
    same = noise_between(pipeline, 0.5, other=5)
    np.testing.assert_allclose(same, draw_noise((4, 16, 16), generators([5])), atol=1e-6)


def test_pictures_of_one_seed_have_variation_seeds_that_count_up(pipeline):
    several = pipeline.generate(
        ask(num_images=3, batch_size=2, variation_seed=9, variation_strength=0.2, scheduler="Euler a")
    )
    assert [(one.seed, one.variation_seed) for one in several.pictures] == [(5, 9), (5, 10), (5, 11)]
    alone = pipeline.generate(ask(variation_seed=11, variation_strength=0.2, scheduler="Euler a"))
    assert psnr(several.pictures[2].image, alone.pictures[0].image) > 60


def test_a_variation_of_an_initial_picture_varies_its_noise(pipeline, picture):
    made = [
        pipeline.generate(ask(init_image=picture, strength=0.9, **more)).pictures[0].image
        for more in ({}, {"variation_seed": 9, "variation_strength": 0.3})
    ]
    assert made[0].tobytes() != made[1].tobytes()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"variation_seed": 3}, "without variation_strength"),
        ({"variation_strength": 1.5}, "not between 0 and 1"),
        ({"variation_strength": 0.5, "variation_seed": -3}, "not between 0 and"),
    ],
)
def test_what_means_no_variation_is_refused(pipeline, more, said):
    with pytest.raises(UsageError, match=said):
        pipeline.resolve_defaults(ask(**more))
