"""Noise against torch's and torchsde's: the same bits on processors whose torch has the kernel that is followed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from olivelike.runtime.pipeline.noise import BrownianPath, Noise

SEEDS = [0, 1, -1, -(2**63), 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63, 2**64 - 1]


def furthest(seed, shapes):
    """Return how far the noise of a seed is from torch's where it is furthest, through several calls."""
    import torch

    ours, theirs = Noise(seed), torch.Generator().manual_seed(seed)
    worst = 0.0
    for shape in shapes:
        drawn, wanted = ours.draw(shape), torch.randn(shape, generator=theirs).numpy()
        assert (drawn.shape, drawn.dtype) == (wanted.shape, wanted.dtype)
        worst = max(worst, float(np.abs(drawn - wanted).max()))
    return worst


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_are_those_of_torch(seed):
    shapes = [(4, 64, 64), (1,), (5, 3), (), (16,), (17,), (3, 5, 7), (7,), (4, 9, 12), (2, 4, 100, 101)]
    assert furthest(seed, shapes) <= 1e-6


def test_nothing_is_drawn_of_no_numbers():
    source = Noise(5)
    assert source.draw((0, 4)).shape == (0, 4)
    assert np.array_equal(source.draw((20,)), Noise(5).draw((20,)))


@pytest.mark.slow
def test_numbers_of_ten_thousand_seeds_and_shapes_are_those_of_torch():
    chance = np.random.default_rng(42)
    for _ in range(10_000):
        seed = int(chance.integers(0, 2**64, dtype=np.uint64))
        shapes = [tuple(chance.integers(1, most, 3).tolist()) for most in chance.choice([2, 4, 16, 40], 3)]
        assert furthest(seed, shapes) <= 1e-6, (seed, shapes)


@pytest.mark.parametrize("shape", [(4, 2, 2), (1, 3), (4, 16, 24)])
@pytest.mark.parametrize("seed", [5, 2**64 - 1])
def test_paths_are_those_of_torchsde(seed, shape):
    import torch

    torchsde = pytest.importorskip("torchsde")
    times = np.float32([14.6146, 9.123456, 7.5, 3.3, 3.2999, 1.1, 0.5, 0.0292]).tolist()
    theirs = torchsde.BrownianInterval(
        t0=times[-1], t1=times[0], size=shape, dtype=torch.float32, device="cpu", entropy=seed, tol=1e-6, pool_size=24,
        halfway_tree=True,
    )  # fmt: skip
    ours = BrownianPath(seed, times[-1], times[0], shape)
    spans = [*zip(times[1:], times, strict=False), (times[4], times[0]), (times[-1], times[0]), (0.0, 20.0)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for span in spans:
            np.testing.assert_allclose(ours.between(*span), theirs(*span).numpy(), rtol=0, atol=1e-5, err_msg=str(span))
    assert not ours.between(2.0, 2.0).any()
