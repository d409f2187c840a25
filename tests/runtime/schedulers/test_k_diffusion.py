"""Samplers and schedule types of A1111 that diffusers has none of, against their formulas in plain loops of 64 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from olivelike.errors import UsageError
from olivelike.families import FAMILIES
from olivelike.runtime.schedulers.class_settings import scheduler_settings
from olivelike.runtime.schedulers.schedule import make_schedule
from olivelike.runtime.schedulers.scheduler_names import SAMPLERS, SPACED, find_scheduler
from olivelike.runtime.schedulers.spacing import TYPES, alphas_of

SD = {
    "_class_name": "PNDMScheduler", "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
    "steps_offset": 1,
}  # fmt: skip
"""As Stable Diffusion 1.5's, whose own spacing is another than that of any type here."""
ALPHAS = alphas_of({**SD, "num_train_timesteps": 1000}).astype(np.float64)
SIGMAS = np.sqrt((1 - ALPHAS) / ALPHAS)
LOGS = np.log(SIGMAS)
ALIGNED = {
    "sd1": (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029),
    "sdxl": (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029),
}
SHAPE = (1, 4, 3, 3)
Array = np.ndarray[Any, np.dtype[np.float64]]


def normal(steps: int) -> Array:
    return np.exp(np.interp(np.linspace(999, 0, steps), np.arange(1000), LOGS))


def simple(steps: int) -> Array:
    return np.array([SIGMAS[-(1 + int(number * (1000 / steps)))] for number in range(steps)])


def ddim(steps: int) -> Array:
    return SIGMAS[1 :: 1000 // steps][:steps][::-1]


def kl_optimal(steps: int) -> Array:
    return np.tan(np.linspace(math.atan(SIGMAS[-1]), math.atan(SIGMAS[0]), steps))


def align_your_steps(steps: int, family: str = "sd1") -> Array:
    known = np.log(ALIGNED[family][::-1])
    return np.exp(np.interp(np.linspace(0, 1, steps), np.linspace(0, 1, len(known)), known))[::-1]


LEVELS: dict[str, Callable[[int], Array]] = {
    "Normal": normal, "Simple": simple, "DDIM": ddim, "KL Optimal": kl_optimal, "Align Your Steps": align_your_steps,
}  # fmt: skip


def karras(steps: int, least: float, largest: float) -> Array:
    return np.linspace(largest ** (1 / 7), least ** (1 / 7), steps) ** 7


def levels_of(name: str, steps: int, **more: Any) -> Array:
    levels = make_schedule(scheduler_settings(name, SD), steps, **more).mixed
    return levels[:, 1] / levels[:, 0]


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("sampler", ["Euler", "DPM++ 2M"])
def test_levels_of_a_schedule_type_are_those_of_its_formula(kind: str, sampler: str) -> None:
    assert set(LEVELS) == set(TYPES)
    for steps in (2, 8, 11, 20, 30, 47):
        np.testing.assert_allclose(levels_of(f"{sampler} {kind}", steps), LEVELS[kind](steps), rtol=1e-9)


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("sampler", ["DPM2", "DPM2 a", "DPM++ 3M SDE"])
def test_samplers_that_overshoot_at_the_least_level_leave_it_out(kind: str, sampler: str) -> None:
    for steps in (2, 20, 30):
        found = levels_of(f"{sampler} {kind}", steps)[:: 2 if sampler.startswith("DPM2") else 1]
        np.testing.assert_allclose(found, LEVELS[kind](steps + 1)[:-1], rtol=1e-9)


@pytest.mark.parametrize("family", ALIGNED)
def test_a_family_has_its_own_levels_of_align_your_steps(family: str) -> None:
    for steps in (11, 25):
        found = levels_of("Euler Align Your Steps", steps, aligned=FAMILIES[family].aligned_levels)
        np.testing.assert_allclose(found, align_your_steps(steps, family), rtol=1e-9)


@pytest.mark.parametrize(
    ("one", "other", "steps", "most"),
    [
        ("Normal", "Uniform", 20, 2e-5),  # Between timesteps, levels are on a line there, and not their logarithms.
        ("Simple", "SGM Uniform", 20, 1e-12),
        ("Simple", "SGM Uniform", 30, 0.02),  # One timestep, where steps do not divide 1000.
    ],
)
def test_types_that_are_nearly_alike_differ_by_so_much(one: str, other: str, steps: int, most: float) -> None:
    found = levels_of(f"Euler {one}", steps) / levels_of(f"Euler {other}", steps) - 1
    assert abs(found).max() < most


def test_turbo_of_forge_is_sgm_uniform_and_polyexponential_exponential() -> None:
    turbo = np.flip(np.arange(1, 9) * (1000 / 8) - 1).round()
    np.testing.assert_array_equal(make_schedule(scheduler_settings("Euler Turbo", SD), 8).timesteps, turbo)
    assert find_scheduler("Euler", "polyexponential") == find_scheduler("Euler Exponential")
    assert find_scheduler("Euler", "ddim_uniform") == find_scheduler("Euler DDIM")


def predict(scaled: Array, timestep: float) -> Array:
    return np.tanh(scaled[:, ::-1] * 0.7 + timestep / 1000) + 0.1 * np.sin(3 * scaled)


def foretold(latents: Array, level: float) -> Array:
    """Return the picture that k-diffusion's wrapper of a network which predicts noise makes of its output."""
    timestep = float(np.interp(math.log(level), LOGS, np.arange(1000)))
    return latents - level * predict(latents / math.sqrt(level**2 + 1), timestep)


def ancestral(start: float, end: float) -> tuple[float, float]:
    up = min(end, math.sqrt(end**2 * (start**2 - end**2) / start**2))
    return math.sqrt(end**2 - up**2), up


def euler_ancestral(latents: Array, levels: list[float], noise: Iterator[Array]) -> Array:
    for start, end in pairwise(levels):
        down, up = ancestral(start, end)
        latents = latents + (latents - foretold(latents, start)) / start * (down - start)
        latents = latents + next(noise) * up
    return latents


def dpmpp_2s_ancestral(latents: Array, levels: list[float], noise: Iterator[Array]) -> Array:
    for start, end in pairwise(levels):
        picture = foretold(latents, start)
        down, up = ancestral(start, end)
        if down == 0:
            latents = latents + (latents - picture) / start * (down - start)
        else:
            time, time_next = -math.log(start), -math.log(down)
            gap = time_next - time
            half = time + gap / 2
            middle = math.exp(-half) / math.exp(-time) * latents - math.expm1(-gap / 2) * picture
            latents = down / start * latents - math.expm1(-gap) * foretold(middle, math.exp(-half))
        if end > 0:
            latents = latents + next(noise) * up
    return latents


def dpmpp_2m(latents: Array, levels: list[float], noise: Iterator[Array]) -> Array:
    del noise
    before: tuple[Array, float] | None = None
    for start, end in pairwise(levels):
        picture = foretold(latents, start)
        if before is None or end == 0:
            aim = picture
        else:
            ratio = math.log(before[1] / start) / math.log(start / end)
            aim = (1 + 1 / (2 * ratio)) * picture - before[0] / (2 * ratio)
        latents = end / start * latents + (1 - end / start) * aim
        before = picture, start
    return latents


def heun(latents: Array, start: float, end: float) -> Array:
    slope = (latents - foretold(latents, start)) / start
    ahead = latents + slope * (end - start)
    if end == 0:
        return ahead
    return latents + (slope + (ahead - foretold(ahead, end)) / end) / 2 * (end - start)


def restart(latents: Array, levels: list[float], noise: Iterator[Array]) -> Array:
    steps, again, often = len(levels) - 1, 0, 0
    if steps >= 20:
        again, often = (steps // 4, 2) if steps >= 36 else (9, 1)
        levels = [*karras(steps - again * often, levels[-2], levels[0]), 0.0]
    way = list(pairwise(levels))
    if often:
        low, high = (int(np.argmin(np.abs(np.array(levels) - level))) for level in (0.1, 2))
        more = karras(again + 1, levels[low], levels[high])
        way[low:low] = [*pairwise(more)] * often
    last = way[0][0]
    for start, end in way:
        if start > last:
            latents = latents + next(noise) * math.sqrt(start**2 - last**2)
        latents, last = heun(latents, start, end), end
    return latents


SAMPLED: dict[str, Callable[[Array, list[float], Iterator[Array]], Array]] = {
    "Euler a": euler_ancestral, "DPM++ 2S a": dpmpp_2s_ancestral, "DPM++ 2M": dpmpp_2m, "Restart": restart,
}  # fmt: skip


def drawn(name: str, steps: int, skipped: int = 0) -> tuple[Array, list[Array], Array]:
    """Return the latents that a schedule begins with, the noise that it draws, and the latents that come of it."""
    chance = np.random.default_rng(steps)
    schedule = make_schedule(scheduler_settings(name, SD), steps, runs=steps - skipped)
    begun = chance.standard_normal(SHAPE) * 3
    latents, kept, noises = begun, schedule.kept, []
    for call in schedule.calls:
        noise: Any = 0.0
        if schedule.draws[call]:
            noises.append(noise := chance.standard_normal(SHAPE))
        output = predict(schedule.scaled(latents, call), float(schedule.timesteps[call]))
        latents, kept, _ = schedule.advance(call, latents, kept, output, noise)
    return begun, noises, latents


@pytest.mark.parametrize("sampler", SAMPLED)
@pytest.mark.parametrize("kind", LEVELS)
def test_latents_are_those_of_the_sampler_s_formula(sampler: str, kind: str) -> None:
    for steps, skipped in ((1, 0), (2, 0), (18, 0), (20, 0), (30, 7), (37, 0), (50, 10)):
        begun, noises, latents = drawn(f"{sampler} {kind}", steps, skipped)
        levels = [*LEVELS[kind](steps)[skipped:], 0.0]
        if sampler == "DPM++ 2M":  # Its latents keep their variance.
            begun = begun * math.sqrt(levels[0] ** 2 + 1)
        if steps == 1 and kind == "Align Your Steps":
            continue  # Its formula has the least level alone, and here it is the largest, which noise begins with.
        if sampler == "Restart" and kind in ("Simple", "DDIM") and levels[-2] > 0.2:
            continue  # It leaves 0 there, where 0 is nearest to 0.1.
        source = iter([*noises, *[np.zeros(SHAPE)] * steps])
        wanted = SAMPLED[sampler](begun, levels, source)
        assert len([*source]) == steps, "noise is drawn as often"
        np.testing.assert_allclose(latents, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{steps} {skipped}")


@pytest.mark.parametrize(
    ("sampler", "steps", "calls", "draws"),
    [("DPM++ 2S a", 10, 19, 9), ("Restart", 19, 37, 0), ("Restart", 20, 39, 1), ("Restart", 40, 79, 2)],
)
def test_a_step_of_two_calls_is_counted_as_one(sampler: str, steps: int, calls: int, draws: int) -> None:
    made = make_schedule(scheduler_settings(sampler, SD), steps)
    assert (made.order, len(made.calls), int(made.draws.sum())) == (2, calls, draws)


def test_a_picture_that_little_is_drawn_of_is_left_no_further_than_it_began() -> None:
    made = make_schedule(scheduler_settings("Restart", SD), 100, strength=0.2)
    assert made.mixed[made.begin :, 1].max() == made.mixed[made.begin, 1] < 2
    assert made.draws[made.begin :].sum() == 1


def test_every_sampler_that_spaces_levels_has_every_type() -> None:
    for sampler, (class_name, _) in SAMPLERS.items():
        for kind in TYPES:
            if class_name in SPACED:
                made = make_schedule(scheduler_settings(f"{sampler} {kind}", SD), 12)
                assert np.isfinite(made.following).all(), (sampler, kind)
            elif kind in ("Normal", "Simple", "DDIM"):
                assert find_scheduler(sampler, kind) == find_scheduler(sampler), "as A1111 does"


@pytest.mark.parametrize(("kind", "most"), [("Simple", 1000), ("DDIM", 999)])
def test_a_type_that_takes_whole_timesteps_has_so_many_steps(kind: str, most: int) -> None:
    chosen = scheduler_settings(f"Euler {kind}", SD)
    assert len(make_schedule(chosen, most).timesteps) == most
    with pytest.raises(UsageError, match=f"it takes 1 to {most}, as many timesteps as {kind} can take"):
        make_schedule(chosen, most + 1)
