"""Formulas of diffusers' schedulers, as columns of one table: what a call of the network is given, and what follows it.

A call's latents x are scaled for the network, whose output m foretells a picture g = p·x + q·m, which may be clipped.
What follows is linear in x, m, g, noise z, and a few kept values, such as pictures that were foretold before:

    x' = a·x + b·g + c·m + d·z + e₁·kept₁ + …,    and each kept' likewise.

Each has its paper; all are compared with diffusers' classes step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from olivelike.runtime.schedulers.spacing import (
    Array,
    Asked,
    at,
    before,
    converted,
    following,
    karras,
    level_at,
    of_type,
    pick,
    spaced,
    timestep_of,
)

X, PICTURE, OUTPUT, NOISE = "x", "picture", "output", "noise"
"""Terms of every sum; the rest are names of kept values."""

Sum = Mapping[str, Any]
"""Term → coefficient, a number or one for each call."""


@dataclass(frozen=True)
class Columns:
    """Columns of a table: each a number for all calls, or an array with one for each."""

    timesteps: Array
    picture: tuple[Any, Any]
    """Coefficients p and q of the picture that an output foretells."""
    following: Mapping[str, Sum]
    """The next value of `X` and of all that is kept, which begins as zeros."""
    mixed: tuple[Any, Any]
    """Signal and noise of a picture at the timestep, for pictures that denoising starts from."""
    scale: Any = 1.0
    """Factor of the network's input."""
    draws: Any = False
    """Whether noise is drawn, used or not."""
    spans: tuple[Any, Any] | None = None
    """Noise levels between which Brownian noise is taken."""
    first: Any = 1.0
    """Factor of the initial noise."""
    order: int = 1
    """Calls of a step."""
    clips: bool = False
    """Whether `clip_sample` cuts the foretold picture."""
    thresholds: bool = False
    """Whether `thresholding` does."""


def _picture(asked: Asked, signal: Any, noise: Any) -> tuple[Any, Any]:
    """Return p and q for latents that are so much signal and so much noise, whose squares add up to 1."""
    match asked.settings["prediction_type"]:
        case "epsilon":
            return 1 / signal, -noise / signal
        case "v_prediction":
            return signal, -noise
    return 0.0, 1.0


def _noise(asked: Asked, signal: Any, noise: Any) -> Sum:
    """Return the noise that an output foretells in the same latents."""
    match asked.settings["prediction_type"]:
        case "epsilon":
            return {OUTPUT: 1.0}
        case "v_prediction":
            return {X: noise, OUTPUT: signal}
    return {X: 1 / noise, OUTPUT: -signal / noise}


def _picture_of_level(asked: Asked, level: Any) -> tuple[Any, Any]:
    """Return p and q for latents that are a picture with noise on top."""
    power = level * level + 1
    match asked.settings["prediction_type"]:
        case "epsilon":
            return 1.0, -level
        case "v_prediction":
            return 1 / power, -level / asked.xp.sqrt(power)
    return 0.0, 1.0


def _plus(*parts: tuple[Any, Sum]) -> dict[str, Any]:
    """Return a sum of sums, each with its factor."""
    found: dict[str, Any] = {}
    for factor, part in parts:
        for term, coefficient in part.items():
            product = factor * coefficient
            found[term] = found[term] + product if term in found else product
    return found


def _choose(asked: Asked, condition: Any, yes: Sum, no: Sum) -> dict[str, Any]:
    """Return one sum where a condition holds, and another elsewhere."""
    return {
        term: asked.xp.where(condition, yes.get(term, 0.0), no.get(term, 0.0)) for term in dict.fromkeys([*yes, *no])
    }


def _shifted(names: Sequence[str], now: Sum) -> dict[str, Sum]:
    """Return what becomes of values that are kept for so many calls, the latest first."""
    return dict(zip(names, [now, *({name: 1.0} for name in names)], strict=False))


def _ddim(asked: Asked) -> Columns:
    """Formula 12 of https://arxiv.org/abs/2010.02502."""
    xp, times = asked.xp, spaced(asked)
    here, there = at(asked, asked.alphas, times), _alpha_after(asked, times, asked.trained // asked.steps)
    signal, noise = xp.sqrt(here), xp.sqrt(1 - here)
    deviation = asked.eta * xp.sqrt((1 - there) / (1 - here) * (1 - here / there))
    direction = xp.sqrt(1 - there - deviation * deviation)
    new = _plus((1.0, {PICTURE: xp.sqrt(there), NOISE: deviation}), (direction, _noise(asked, signal, noise)))
    return Columns(
        times, _picture(asked, signal, noise), {X: new}, (signal, noise), draws=asked.eta > 0, clips=True,
        thresholds=True,
    )  # fmt: skip


def _alpha_after(asked: Asked, times: Array, stride: Any) -> Array:
    """Return the product of alphas one stride behind each timestep."""
    there = times - stride
    final = 1.0 if asked.on("set_alpha_to_one") else asked.alphas[0]
    return asked.xp.where(there >= 0, at(asked, asked.alphas, there), final)


def _ddpm(asked: Asked) -> Columns:
    """Formulas 6 and 7 of https://arxiv.org/abs/2006.11239."""
    xp, times = asked.xp, spaced(asked)
    here = at(asked, asked.alphas, times)
    there = following(asked, here, 1.0)
    beta = 1 - here / there
    signal, noise = xp.sqrt(here), xp.sqrt(1 - here)
    large = str(asked.settings["variance_type"]).startswith("fixed_large")
    variance = beta if large else xp.maximum((1 - there) / (1 - here) * beta, 1e-20)
    new = {
        PICTURE: xp.sqrt(there) * beta / (1 - here),
        X: xp.sqrt(here / there) * (1 - there) / (1 - here),
        NOISE: xp.where(times > 0, xp.sqrt(variance), 0.0),
    }
    return Columns(
        times, _picture(asked, signal, noise), {X: new}, (signal, noise), draws=times > 0, clips=True, thresholds=True
    )


def _distilled(asked: Asked) -> Array:
    """Return the timesteps of a network that was distilled on some of them, evenly spread."""
    many = asked.settings["original_inference_steps"]
    place = asked.xp.floor(asked.index * (many / asked.steps))
    return (many - place) * (asked.trained // many) - 1


def _lcm(asked: Asked) -> Columns:
    """Algorithm 3 of https://arxiv.org/abs/2310.04378: to the picture, and back to noise."""
    xp, times, last = asked.xp, _distilled(asked), asked.is_last()
    here = at(asked, asked.alphas, times)
    there = xp.where(last, 1.0, following(asked, here, 1.0))
    signal, noise = xp.sqrt(here), xp.sqrt(1 - here)
    scaled = times * asked.settings["timestep_scaling"]
    power = scaled * scaled + 0.25
    back = xp.sqrt(there)
    new = {X: back * 0.25 / power, PICTURE: back * scaled / xp.sqrt(power), NOISE: xp.sqrt(1 - there)}
    return Columns(
        times, _picture(asked, signal, noise), {X: new}, (signal, noise), draws=~last, clips=True, thresholds=True
    )


def _tcd(asked: Asked) -> Columns:
    """Algorithm 4 of https://arxiv.org/abs/2402.19159; `eta` is its gamma."""
    xp, times, last = asked.xp, _distilled(asked), asked.is_last()
    then = following(asked, times, 0.0)
    # Torch multiplies these in 32 bits, and cuts off.
    on_the_way = xp.floor(xp.float32(xp.float32(1 - asked.eta) * xp.float32(then))) * 1.0
    here, there, way = (at(asked, asked.alphas, one) for one in (times, then, on_the_way))
    signal, noise = xp.sqrt(here), xp.sqrt(1 - here)
    kept = xp.where(last, 1.0, there / way)
    new = _plus(
        (xp.sqrt(kept * way), {PICTURE: 1.0}),
        (xp.sqrt(kept * (1 - way)), _noise(asked, signal, noise)),
        (xp.sqrt(1 - kept), {NOISE: 1.0}),
    )
    draws = ~last if asked.eta > 0 else False
    return Columns(times, _picture(asked, signal, noise), {X: new}, (signal, noise), draws=draws)


_ADAMS: Final = ((3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))
"""Weights of the latest two outputs and more, the last one first: formula 12 of https://arxiv.org/abs/2202.09778."""
_RUNGE_KUTTA: Final = 12
"""Calls at the beginning, four for each of three steps."""
_OUTPUTS: Final = ("output 1", "output 2", "output 3")
_BEGUN, _ADDED_UP = "begun", "added up"


def _pndm(asked: Asked) -> Columns:
    """Algorithm 2 of https://arxiv.org/abs/2202.09778; without Runge-Kutta, the second step is taken twice."""
    xp, skips, stride = asked.xp, asked.on("skip_prk_steps"), asked.trained // asked.steps
    once = spaced(asked)
    calls = xp.minimum(asked.steps + 1, 2 * asked.steps - 1) if skips else asked.steps + _RUNGE_KUTTA - 3
    call = xp.arange(calls) * 1.0
    number = call - asked.skipped
    if skips:
        times = pick(asked, once, call - xp.where(call >= 2, 1, 0))
        again = (number >= 1) & (number <= 1)
        start, end = times + xp.where(again, stride, 0), times - xp.where(again, 0, stride)
    else:
        half, part = stride // 2, call - 4 * xp.floor(call / 4)
        inner = call < _RUNGE_KUTTA
        place = xp.where(inner, xp.floor(call / 4) + xp.where(part >= 1, 1, 0), call - (_RUNGE_KUTTA - 3))
        times = pick(asked, once, place) + xp.where(inner & (part >= 1) & (part <= 2), half, 0)
        inner, part = number < _RUNGE_KUTTA, number - 4 * xp.floor(number / 4)
        even = (part <= 0) | ((part >= 2) & (part <= 2))
        start = xp.where(inner, pick(asked, once, xp.floor(number / 4)), times)
        end = times - xp.where(inner, xp.where(even, half, 0), stride)
    here, there = at(asked, asked.alphas, start), _alpha_after(asked, end, 0)
    signal, noise = xp.sqrt(here), xp.sqrt(1 - here)
    factor = (here - there) / (here * xp.sqrt(1 - there) + xp.sqrt(here * (1 - here) * there))
    foretold = _noise(asked, signal, noise)
    base, weight = xp.sqrt(there / here) + factor * foretold.get(X, 0.0), factor * foretold[OUTPUT]
    terms, known = (OUTPUT, *_OUTPUTS), number - (1 if skips else _RUNGE_KUTTA - 3)
    adams: Sum = {OUTPUT: 1.0}
    for many, weights in enumerate(_ADAMS, 1):
        adams = _choose(asked, known >= many, dict(zip(terms, weights, strict=False)), adams)
    new = _plus((base, {X: 1.0}), (weight, adams))
    kept = _shifted(_OUTPUTS, {OUTPUT: 1.0})
    if skips:
        mean = {_BEGUN: base, OUTPUT: weight / 2, _OUTPUTS[0]: weight / 2}
        after: dict[str, Sum] = {X: _choose(asked, again, mean, new), _BEGUN: {X: 1.0}}
        held, stays = after, again
    else:
        first = part <= 0
        begun = {X: xp.where(first, 1.0, 0.0), _BEGUN: xp.where(first, 0.0, 1.0)}
        whole = part >= 3
        output = _choose(asked, whole, {_ADDED_UP: 1.0, OUTPUT: 1 / 6}, {OUTPUT: 1.0})
        sixth = xp.where(first, 1 / 6, 1 / 3)
        stepped = _plus((base, begun), (weight, output))
        after = {
            X: _choose(asked, inner, stepped, new),
            _BEGUN: begun,
            _ADDED_UP: {_ADDED_UP: xp.where(first | whole, 0.0, 1.0), OUTPUT: xp.where(whole, 0.0, sixth)},
        }
        held, stays = after, inner & (part >= 1)
    held |= {name: _choose(asked, stays, {name: 1.0}, sum_) for name, sum_ in kept.items()}
    now = at(asked, asked.alphas, times)
    mixed = xp.sqrt(now), xp.sqrt(1 - now)
    return Columns(times, _picture(asked, *mixed), held, mixed)


def _sigmas(asked: Asked) -> tuple[Array, ...]:
    """Return timesteps, noise levels, those that each step leads to, and the initial noise's factor.

    They are those of schedulers that take any level.
    """
    if (kind := of_type(asked)) is not None:
        times, here = kind
        return times, here, following(asked, here, 0.0), here[:1]
    xp, own = asked.xp, asked.settings
    times = spaced(asked, rounded=False)
    here = level_at(asked, times)
    last = asked.levels[0] if own.get("final_sigmas_type") == "sigma_min" else 0.0
    there = following(asked, here, last)
    if own.get("interpolation_type") == "log_linear":
        low, high = math.log(asked.levels[0]), math.log(asked.levels[-1])
        here, there = (xp.exp(high + (asked.index + more) / asked.steps * (low - high)) for more in (0, 1))
    least = there[-1:] if own.get("interpolation_type") == "log_linear" else here[-1:]
    if (other := converted(asked, least, here[:1])) is not None:
        times, here, there = timestep_of(asked, other), other, following(asked, other, last)
    first = here[:1]
    return times, here, there, xp.sqrt(first * first + 1) if own["timestep_spacing"] == "leading" else first


def _of_levels(
    asked: Asked, times: Array, level: Array, seen: Array, first: Array, after: Mapping[str, Sum], **more: Any
) -> Columns:
    """Return the columns of a scheduler whose latents are a picture with noise on top.

    `seen` is the noise that the network sees, and `level` what a picture gets that denoising starts from.
    """
    scale = 1 / asked.xp.sqrt(seen * seen + 1)
    return Columns(
        times, _picture_of_level(asked, seen), after, (1.0, level), **{"scale": scale, "first": first, **more}
    )


def _toward(ratio: Any, start: str = X) -> dict[str, Any]:
    """Return the sum that leaves so much of the noise in latents, toward the foretold picture."""
    return {start: ratio, PICTURE: 1 - ratio}


def _euler(asked: Asked) -> Columns:
    """Algorithm 2 of https://arxiv.org/abs/2206.00364 without churn."""
    times, here, there, first = asked.spacing(_sigmas)
    if asked.settings["timestep_type"] == "continuous" and asked.settings["prediction_type"] == "v_prediction":
        times = 0.25 * asked.xp.log(here)
    return _of_levels(asked, times, here, here, first, {X: _toward(there / here)})


def _ancestral(xp: Any, here: Array, there: Array) -> tuple[Array, Array]:
    """Return the noise that a step keeps and that it adds: `get_ancestral_step` of k-diffusion."""
    up = xp.minimum(there, there * xp.sqrt(xp.maximum(here * here - there * there, 0)) / here)
    return xp.sqrt(there * there - up * up), up


def _euler_ancestral(asked: Asked) -> Columns:
    """k-diffusion's `sample_euler_ancestral`: down to less noise than the next step has, and fresh noise on top."""
    times, here, there, first = asked.spacing(_sigmas)
    down, up = _ancestral(asked.xp, here, there)
    return _of_levels(asked, times, here, here, first, {X: {**_toward(down / here), NOISE: up}}, draws=True)


def _in_turn(asked: Asked, first: Any, second: Any) -> Array:
    """Return columns of steps of two calls, of which the last has but one."""
    xp, zeros = asked.xp, asked.index * 0.0
    return xp.reshape(xp.stack([zeros + first, zeros + second], axis=1), (-1,))[:-1]


def _two_calls(
    asked: Asked, times: tuple[Array, Array], levels: tuple[Array, Array, Array], first: Array,
    sums: Sequence[Mapping[str, Sum]], **more: Any,
) -> Columns:  # fmt: skip
    """Return the columns of a scheduler that calls the network at a step's noise level, and again below it.

    Args:
        asked: Steps and settings.
        times: Timesteps of both calls.
        levels: Noise of the step, noise that the second call sees, and noise of the next step.
        first: Factor of the initial noise.
        sums: What follows the first call, and the second.
        more: Columns that are as they are.
    """
    here, seen, there = levels
    after = {
        name: {
            term: _in_turn(asked, *(part.get(name, {}).get(term, 0.0) for part in sums))
            for term in dict.fromkeys([*sums[0].get(name, {}), *sums[1].get(name, {})])
        }
        for name in sums[0]
    }
    level, both = _in_turn(asked, here, there), _in_turn(asked, here, seen)
    return _of_levels(asked, _in_turn(asked, *times), level, both, first, after, order=2, **more)


_KEPT = "kept"


def _heun(asked: Asked) -> Columns:
    """Algorithm 1 of https://arxiv.org/abs/2206.00364."""
    times, here, there, first = asked.spacing(_sigmas)
    moments, levels = (times, following(asked, times, 0.0)), (here, there, there)
    return _two_calls(asked, moments, levels, first, _mean_slope(asked, here, there), clips=True)


def _mean_slope(asked: Asked, here: Array, there: Array) -> list[Mapping[str, Sum]]:
    """Return sums of two calls: to the next level by the slope here, and back to go there by the mean of both."""
    half, safe = (there - here) / 2, asked.xp.where(there > 0, there, 1.0)
    begun = {X: _toward(there / here), _KEPT: {X: 1 + half / here, PICTURE: -half / here}}
    return [begun, {X: {_KEPT: 1.0, X: half / safe, PICTURE: -half / safe}}]


_AGAIN: Final = (0.1, 2.0)
"""Levels between which steps of Restart run again, where a schedule has them."""
_ONCE, _TWICE = 20, 36
"""Steps from which on they do so once, and twice."""


def _restart(asked: Asked) -> Columns:
    """Heun's steps of https://arxiv.org/abs/2306.14878, as many and where A1111's `restart_sampler` has them.

    From 20 steps on levels are Karras' between the ends of the schedule type. Those near 0.1 are left for 2 again, with
    fresh noise, 9 steps before; from 36 on twice, with a quarter of the steps each time. A level of 0 is never left.
    """
    xp, runs = asked.xp, asked.steps - asked.skipped
    _, plain, _, first = asked.spacing(_sigmas)
    begun = pick(asked, plain, xp.minimum(asked.index + asked.skipped, asked.steps - 1))
    often = xp.where(runs >= _TWICE, 2.0, xp.where(runs >= _ONCE, 1.0, 0.0))
    part = xp.where(runs >= _TWICE, xp.floor(runs / 4), 9.0)
    once = runs - often * part
    share = xp.minimum(asked.index / xp.maximum(once - 1, 1), 1)
    way = xp.where(runs >= _ONCE, karras(plain[-1:], begun[:1], share), begun)
    low, high = (xp.argmin((way - level) ** 2) for level in _AGAIN)
    ends = pick(asked, way, low), pick(asked, way, high)

    def turn(step: Array) -> tuple[Array, Array]:
        """Say whether a step runs again, and how many of its turn are before it."""
        more = step - low
        return (more >= 0) & (more < often * part), more - part * xp.floor(more / part)

    step = xp.maximum(asked.done(), 0)
    again, place = turn(step)
    number = step - xp.where(step >= low, often * part, 0.0)
    here = xp.where(again, karras(*ends, place / part), pick(asked, way, xp.maximum(number, 0)))
    last = xp.where(number >= once - 1, 0.0, pick(asked, way, xp.maximum(xp.minimum(number + 1, asked.steps - 1), 0)))
    there = xp.where(again, karras(*ends, (place + 1) / part), last)
    leaps, place = turn(step + 1)
    leaps = leaps & (place <= 0)
    above = following(asked, here, 0.0)
    up = xp.where(leaps, xp.sqrt(xp.maximum(above * above - there * there, 0)), 0.0)
    begun_sums, second = _mean_slope(asked, here, there)
    sums: list[Mapping[str, Sum]] = [begun_sums, {X: {**second[X], NOISE: up}}]
    times = timestep_of(asked, here), timestep_of(asked, there)
    draws = _in_turn(asked, 0.0, xp.where(leaps, 1.0, 0.0)) > 0
    return _two_calls(asked, times, (here, there, there), first, sums, draws=draws)


def _middle(asked: Asked, here: Array, there: Array) -> tuple[Array, Array, Array]:
    """Return the level between two, its timestep, and the level where it is not 0."""
    middle = asked.xp.sqrt(here * there)
    return middle, timestep_of(asked, middle), asked.xp.where(middle > 0, middle, 1.0)


def _sigmas_of_dpm2(asked: Asked) -> tuple[Array, ...]:
    times, *levels = _sigmas(asked)
    return (asked.xp.round(times) if asked.on("use_karras_sigmas") else times, *levels)


def _dpm2(asked: Asked, *, ancestral: bool = False) -> Columns:
    """k-diffusion's `sample_dpm_2`, and `sample_dpm_2_ancestral`."""
    times, here, there, first = asked.spacing(_sigmas_of_dpm2)
    down, up = _ancestral(asked.xp, here, there) if ancestral else (there, 0.0)
    middle, time, safe = _middle(asked, here, down)
    slope = (down - here) / safe
    sums: list[dict[str, Sum]] = [
        {X: _toward(middle / here), _KEPT: {X: 1.0}},
        {X: {_KEPT: 1.0, X: slope, PICTURE: -slope, NOISE: up}},
    ]
    draws = _in_turn(asked, 0.0, 1.0) > 0 if ancestral else False
    return _two_calls(asked, (times, time), (here, middle, there), first, sums, draws=draws)


def _dpmpp_2s_ancestral(asked: Asked) -> Columns:
    """k-diffusion's `sample_dpmpp_2s_ancestral`."""
    times, here, there, first = asked.spacing(_sigmas)
    down, up = _ancestral(asked.xp, here, there)
    middle, time, _ = _middle(asked, here, down)
    sums: list[dict[str, Sum]] = [
        {X: _toward(middle / here), _KEPT: {X: 1.0}},
        {X: {**_toward(down / here, _KEPT), NOISE: up}},
    ]
    draws = _in_turn(asked, 0.0, 1.0) > 0
    return _two_calls(asked, (times, time), (here, middle, there), first, sums, draws=draws)


def _sde(asked: Asked) -> Columns:
    """k-diffusion's `sample_dpmpp_sde`."""
    times, here, there, first = asked.spacing(_sigmas)
    middle, time, _ = _middle(asked, here, there)
    sums: list[dict[str, Sum]] = []
    for start, end in ((X, middle), (_KEPT, there)):
        down, up = _ancestral(asked.xp, here, end)
        sums.append({X: {**_toward(down / here, start), NOISE: up}})
    sums[0][_KEPT] = {X: 1.0}
    draws = _in_turn(asked, asked.xp.where(there > 0, 1.0, 0.0), 1.0) > 0
    spans = _in_turn(asked, here, here), _in_turn(asked, middle, there)
    return _two_calls(asked, (times, time), (here, middle, there), first, sums, draws=draws, spans=spans)


_SLOPES: Final = ("slope 1", "slope 2", "slope 3")


def _lms(asked: Asked) -> Columns:
    """k-diffusion's `sample_lms`: a polynomial through four slopes, integrated by Simpson's rule, which is exact."""
    xp = asked.xp
    times, here, there, first = asked.spacing(_sigmas)
    levels = [before(asked, here, steps) for steps in range(4)]
    places = ((here, 1 / 6), ((here + there) / 2, 4 / 6), (there, 1 / 6))
    slope = {X: 1 / here, PICTURE: -1 / here}
    parts: list[tuple[Any, Sum]] = [(1.0, {X: 1.0})]
    for own, term in enumerate((slope, *({name: 1.0} for name in _SLOPES))):
        total: Any = 0.0
        for place, weight in places:
            product: Any = weight
            for other in range(4):
                if other != own:
                    gap = xp.where(asked.index >= max(own, other), levels[own] - levels[other], 1.0)
                    product = product * xp.where(asked.index >= other, (place - levels[other]) / gap, 1.0)
            total = total + product
        parts.append((xp.where(asked.index >= own, total * (there - here), 0.0), term))
    return _of_levels(asked, times, here, here, first, {X: _plus(*parts), **_shifted(_SLOPES, slope)})


_EARLIER: Final = ("earlier 1", "earlier 2", "earlier 3")


@dataclass(frozen=True)
class _Solver:
    """Noise levels of a solver in the half logarithm of the signal-to-noise ratio, and what it keeps of calls."""

    asked: Asked
    times: Array
    here: Array
    there: Array
    now: Sum
    """The value that each call adds to those that are kept: a picture, or noise."""
    of_noise: bool
    told: Mapping[str, Any]
    """Columns beside timesteps and sums."""

    def parts(self, level: Array) -> tuple[Any, Any]:
        """Return signal and noise of latents at a level; those of networks trained as EDM keep the whole signal."""
        signal = 1.0 if "sigma_data" in self.asked.settings else 1 / self.asked.xp.sqrt(level * level + 1)
        return signal, level * signal

    def gap(self, start: Array, end: Array) -> Array:
        """Return how far one level is from another."""
        return self.asked.xp.log(start) - self.asked.xp.log(end)

    def back(self, steps: int) -> Array:
        """Return the level so many steps before."""
        return before(self.asked, self.here, steps)

    def columns(self, after: Mapping[str, Sum], **more: Any) -> Columns:
        """Return the columns of a solver with these sums."""
        thresholds = not (self.of_noise and "predict_x0" in self.asked.settings)
        return Columns(self.times, following=after, **{**self.told, "thresholds": thresholds, **more})


def _solver_levels(asked: Asked) -> tuple[Array, ...]:
    """Return timesteps, noise levels, and those that each step leads to, of schedulers of several steps."""
    xp, own, lowest = asked.xp, asked.settings, asked.levels[:1]
    last = {"zero": 0.0, "sigma_min": xp.asarray(lowest)}.get(own.get("final_sigmas_type", ""))
    if (kind := of_type(asked)) is not None:
        times, here = kind
        return times, here, following(asked, here, xp.asarray(lowest) if last is None else last)
    clipped = own.get("lambda_min_clipped", -math.inf)
    ends = asked.trained - int((-np.log(asked.levels) < clipped).sum())
    times = spaced(asked, more=0 if own.get("timestep_spacing") == "trailing" else 1, ends=ends)
    here = level_at(asked, times)
    if (other := converted(asked, xp.asarray(lowest), xp.asarray(asked.levels[-1:]))) is None:
        return times, here, following(asked, here, xp.asarray(lowest) if last is None else last)
    here, times = other, timestep_of(asked, other)
    bends = asked.on("use_karras_sigmas") or asked.on("use_lu_lambdas")
    keeps = own["beta_schedule"] == "squaredcos_cap_v2" and "use_lu_lambdas" in own
    times = xp.round(times) if bends and not keeps else xp.floor(times)
    repeats = last is None or ("predict_x0" in own and own["final_sigmas_type"] == "sigma_min")
    return times, here, following(asked, here, here[-1:] if repeats else last)


def _solver(asked: Asked, *, of_noise: bool) -> _Solver:
    times, here, there = asked.spacing(_solver_levels)
    signal = 1 / asked.xp.sqrt(here * here + 1)
    noise = here * signal
    now: Sum = {PICTURE: 1.0}
    if of_noise:
        now = {X: 1 / noise, PICTURE: -signal / noise} if asked.on("thresholding") else _noise(asked, signal, noise)
    told = {"picture": _picture(asked, signal, noise), "mixed": (signal, noise)}
    return _Solver(asked, times, here, there, now, of_noise, told)


def _orders(asked: Asked, *, falls: bool) -> Array:
    """Return how many outputs each step of a solver uses, which rises at first and may fall at last."""
    xp = asked.xp
    order = xp.minimum(asked.settings["solver_order"] * 1.0, asked.done() + 1)
    left = asked.steps - asked.index
    few = asked.steps < 15
    if asked.on("lower_order_final"):
        order = xp.where(few & (left <= 2), xp.minimum(order, left), order)
    return xp.where(left <= 1, 1.0, order) if falls else order


@dataclass(frozen=True)
class _Update:
    """Factors of one step of DPM-Solver, over a gap in the half logarithm of the signal-to-noise ratio."""

    base: Any
    first: Any
    bent: Any
    """Factor of the second difference, by the rule that `solver_type` names."""
    second: Any
    third: Any
    noise: Any


def _dpm_update(solver: _Solver, start: Array) -> _Update:
    """Return the factors of a step from a level to the next one: algorithms 1 and 2 of 2211.01095."""
    asked, xp = solver.asked, solver.asked.xp
    kind, gap = asked.settings["algorithm_type"], solver.gap(start, solver.there)
    (signal, noise), (signal_start, noise_start) = solver.parts(solver.there), solver.parts(start)
    random = kind.startswith("sde")
    ratio, fresh = solver.there / start, 0.0
    if solver.of_noise:
        scale, over, left, base = (2 * noise if random else noise), -gap, 1 / ratio, signal / signal_start
        fresh = noise * xp.sqrt(left * left - 1) if random else 0.0
    else:
        left = ratio * ratio if random else ratio
        scale, over = signal, (2 * gap if random else gap)
        base = noise / noise_start * (ratio if random else 1)
        fresh = noise * xp.sqrt(1 - left) if random else 0.0
    change = left - 1
    second = scale * (change / over + 1)
    sign = 0.5 if random and not solver.of_noise else -0.5
    third = -scale * ((change + over) / (over * over) + sign)
    bent = -0.5 * scale * change if asked.settings["solver_type"] == "midpoint" else second
    return _Update(base, -scale * change, bent, second, third, fresh)


def _dpm_multistep(asked: Asked, solver: _Solver | None = None) -> Columns:
    """DPM-Solver in several steps: 2M of https://arxiv.org/abs/2211.01095, SDE of its appendix, and of third order."""
    own = asked.settings
    solver = solver or _solver(asked, of_noise=own["algorithm_type"] in {"dpmsolver", "sde-dpmsolver"})
    order = _orders(asked, falls=asked.on("euler_at_final") or own["final_sigmas_type"] == "zero")
    one, two = solver.back(1), solver.back(2)
    step = _dpm_update(solver, solver.here)
    gap, gap_1, gap_2 = solver.gap(solver.here, solver.there), solver.gap(one, solver.here), solver.gap(two, one)
    near, far = gap_1 / gap, gap_2 / gap
    first = {"now": step.first}
    second = {"now": step.first + step.bent / near, _EARLIER[0]: -step.bent / near}
    share = near / (near + far)
    u = step.second * (1 + share) + step.third / (near + far)
    v = -step.second * share - step.third / (near + far)
    third = {"now": step.first + u / near, _EARLIER[0]: v / far - u / near, _EARLIER[1]: -v / far}
    return _solved(solver, {X: step.base, NOISE: step.noise}, order, [first, second, third])


def _solved(
    solver: _Solver, base: Sum, order: Array, sums: Sequence[Sum], kept: Mapping[str, Sum] | None = None
) -> Columns:
    """Return the columns of a solver that uses the sum of each step's order."""
    asked = solver.asked
    most = asked.settings["solver_order"]
    chosen: Sum = sums[0]
    for many, one in enumerate(sums[1:most], 2):
        chosen = _choose(asked, order >= many, one, chosen)
    terms = {term: factor for term, factor in chosen.items() if term != "now"}
    new = _plus((1.0, base), (chosen["now"], solver.now), (1.0, terms))
    random = asked.settings["algorithm_type"].startswith("sde")
    after = {X: new, **(kept or {}), **_shifted(_EARLIER[: most - 1], solver.now)}
    return solver.columns(after, draws=random)


def _dpm_singlestep(asked: Asked) -> Columns:
    """DPM-Solver whose steps begin again every two or three calls: algorithms 1 and 2 of 2206.00927."""
    own, xp, most = asked.settings, asked.xp, asked.settings["solver_order"]
    solver = _solver(asked, of_noise=own["algorithm_type"] == "dpmsolver")
    turn = asked.index - most * xp.floor(asked.index / most)
    order = xp.minimum(turn + 1, asked.done() + 1)
    whole = asked.steps - most * xp.floor(asked.steps / most) <= 0
    falls = (asked.on("lower_order_final") & whole) | (own["final_sigmas_type"] == "zero")
    order = xp.where(asked.is_last() & falls, 1.0, order)
    one, two = solver.back(1), solver.back(2)
    plain, middle, long = (_dpm_update(solver, start) for start in (solver.here, one, two))
    near = solver.gap(one, solver.here) / solver.gap(one, solver.there)
    second = {"now": middle.bent / near, _EARLIER[0]: middle.first - middle.bent / near}
    whole_gap = solver.gap(two, solver.there)
    near, far = solver.gap(two, solver.here) / whole_gap, solver.gap(two, one) / whole_gap
    if own["solver_type"] == "midpoint":
        u, v = 0.0, long.second
    else:
        u = (long.second * near - 2 * long.third) / (near - far)
        v = (2 * long.third - long.second * far) / (near - far)
    third = {"now": v / near, _EARLIER[0]: u / far, _EARLIER[1]: long.first - u / far - v / near}
    base: Sum = {X: plain.base, NOISE: plain.noise}
    for many, update in list(enumerate((middle, long), 2))[: most - 1]:
        base = _choose(asked, order >= many, {_KEPT: update.base, NOISE: update.noise}, base)
    begins = order <= 1
    kept = {_KEPT: {X: xp.where(begins, 1.0, 0.0), _KEPT: xp.where(begins, 0.0, 1.0)}}
    return _solved(solver, base, order, [{"now": plain.first}, second, third], kept)


def _deis(asked: Asked) -> Columns:
    """Log-rho multistep DEIS: https://arxiv.org/abs/2204.13902."""
    xp, solver = asked.xp, _solver(asked, of_noise=True)
    (signal, noise), (signal_here, _) = solver.parts(solver.there), solver.parts(solver.here)
    there, here, one, two = (xp.log(level) for level in (solver.there, solver.here, solver.back(1), solver.back(2)))

    def over_line(own: Array, other: Array) -> Array:
        def until(level: Array) -> Array:
            return xp.exp(level) * (level - other - 1) / (own - other)

        return signal * (until(there) - until(here))

    def over_parabola(own: Array, other: Array, third: Array) -> Array:
        def until(level: Array) -> Array:
            inner = other * (third - level + 1) - third * level + third + level * level - 2 * level + 2
            return xp.exp(level) * inner / ((own - other) * (own - third))

        return signal * (until(there) - until(here))

    first = {"now": -noise * (solver.here / solver.there - 1)}
    second = {"now": over_line(here, one), _EARLIER[0]: over_line(one, here)}
    third = {
        "now": over_parabola(here, one, two),
        _EARLIER[0]: over_parabola(one, two, here),
        _EARLIER[1]: over_parabola(two, here, one),
    }
    return _solved(solver, {X: signal / signal_here}, _orders(asked, falls=False), [first, second, third])


def _unipc(asked: Asked) -> Columns:
    """Algorithms 1 and 2 of https://arxiv.org/abs/2302.04867: a step is corrected once its end is known."""
    own, xp, most = asked.settings, asked.xp, asked.settings["solver_order"]
    solver = _solver(asked, of_noise=not asked.on("predict_x0"))
    levels = [solver.here, *(solver.back(steps) for steps in range(1, most + 1))]
    order = xp.minimum(most * 1.0, asked.done() + 1)
    if asked.on("lower_order_final"):
        order = xp.minimum(order, asked.steps - asked.index)

    def step(levels: Sequence[Array], end: Array, known: Sequence[Sum], start: str, latest: Sum | None) -> list[Sum]:
        """Return sums of each order, from a level to another, by outputs at levels; corrected by the latest."""
        gap = solver.gap(levels[0], end)
        (signal, noise), (signal_start, noise_start) = solver.parts(end), solver.parts(levels[0])
        if solver.of_noise:
            over, scale, base, change = gap, noise, signal / signal_start, levels[0] / end - 1
        else:
            over, scale, base, change = -gap, signal, noise / noise_start, end / levels[0] - 1
        width = over if own["solver_type"] == "bh1" else change
        right, factorial, rest = [], 1, change / over - 1
        for k in range(1, most + 1):
            right.append(rest * factorial / width)
            factorial *= k + 1
            rest = rest / over - 1 / factorial
        found: list[Sum] = []
        for many in range(1, most + 1):
            ratios = [-solver.gap(levels[k], levels[0]) / gap for k in range(1, many)]
            ends = [*ratios, 1.0] if latest is not None else ratios
            weights = _solve(ends, right) if len(ends) > 1 else [0.5] * len(ends)
            parts: list[tuple[Any, Sum]] = [(base, {start: 1.0}), (-scale * change, known[0])]
            differences = [*known[1:many], *([latest] if latest is not None else [])]
            for weight, ratio, value in zip(weights, ends, differences, strict=True):
                factor = -scale * width * weight / ratio
                parts += [(factor, value), (-factor, known[0])]
            found.append(_plus(*parts))
        return found

    def of_order(sums: Sequence[Sum], order: Array) -> Sum:
        chosen = sums[0]
        for many, one in enumerate(sums[1:], 2):
            chosen = _choose(asked, order >= many, one, chosen)
        return chosen

    earlier = [{name: 1.0} for name in _EARLIER[:most]]
    last_order = before(asked, order, 1)
    corrected = of_order(step(levels[1:], solver.here, earlier, _KEPT, solver.now), last_order)
    corrects = asked.done() >= 1
    for place in own["disable_corrector"]:
        corrects = corrects & ((asked.index < place + 1) | (asked.index > place + 1))
    start = _choose(asked, corrects, corrected, {X: 1.0})
    ahead = of_order(step(levels[:-1], solver.there, [solver.now, *earlier[:-1]], "start", None), order)
    new = _plus((ahead["start"], start), (1.0, {term: one for term, one in ahead.items() if term != "start"}))
    return solver.columns({X: new, _KEPT: start, **_shifted(_EARLIER[:most], solver.now)})


def _solve(places: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """Return weights w such that the sum of w·places^k is right[k], for each k."""
    if len(places) == 2:
        one, two = places
        return [(right[0] * two - right[1]) / (two - one), (right[1] - right[0] * one) / (two - one)]
    found = []
    for number, place in enumerate(places):
        one, two = (other for k, other in enumerate(places) if k != number)
        found.append((right[2] - (one + two) * right[1] + one * two * right[0]) / ((place - one) * (place - two)))
    return found


_DRAWN = "drawn"
_RANDOM_FROM, _RANDOM_TO = 200, 800
"""Timesteps between which SA-Solver adds noise, in diffusers' default."""


def _sa(asked: Asked) -> Columns:
    """Algorithm 1 of https://arxiv.org/abs/2309.05019, with the predictor and corrector of two steps of its code."""
    own, xp = asked.settings, asked.xp
    solver = _solver(asked, of_noise=own["algorithm_type"] == "noise_prediction")
    most, most_back = own["predictor_order"], own["corrector_order"]
    ahead, back = xp.minimum(most * 1.0, asked.done() + 1), xp.minimum(most_back * 1.0, asked.done() + 2)
    if asked.on("lower_order_final"):
        left = asked.steps - asked.index
        ahead, back = xp.minimum(ahead, left), xp.minimum(back, left + 1)
    earlier: list[Sum] = [{name: 1.0} for name in _EARLIER[: max(most - 1, most_back - 1)]]
    logs = [-xp.log(solver.here), *(-xp.log(solver.back(steps)) for steps in range(1, max(most, most_back)))]
    random = xp.where((solver.times >= _RANDOM_FROM) & (solver.times <= _RANDOM_TO), 1.0, 0.0)

    def step(start: Array, end: Array, tau: Array, known: Sequence[Sum], many: int, begin: Sum, noise: str) -> Sum:
        """Return the sum that leads from a level to another, by a polynomial through outputs at the levels of steps."""
        low, high = -xp.log(start), -xp.log(end)
        gap, rate = high - low, 1 + tau * tau
        (signal, level), (signal_start, level_start) = solver.parts(end), solver.parts(start)
        weights = _integrals(logs[:many], low, high, xp.exp, rate if not solver.of_noise else -1.0)
        if many == 2 and not solver.of_noise:  # As the paper's code has it.
            bend = (gap * rate - 1 + xp.exp(-rate * gap)) / (rate * rate)
            extra = xp.exp(rate * high) * (gap * gap / 2 - bend) / (logs[0] - logs[1])
            weights = [weights[0] + extra, weights[1] - extra]
        if solver.of_noise:
            scale, base = -rate * signal, signal / signal_start
            fresh = tau * level * xp.sqrt(xp.exp(2 * gap) - 1)
        else:
            scale, base = rate * level * xp.exp(-tau * tau * high), xp.exp(-tau * tau * gap) * level / level_start
            fresh = level * xp.sqrt(1 - xp.exp(-2 * tau * tau * gap))
        parts = [(scale * weight, value) for weight, value in zip(weights, known, strict=False)]
        return _plus((base, begin), (fresh, {noise: 1.0}), *parts)

    def of_order(order: Array, many: int, one: Callable[[int], Sum]) -> Sum:
        chosen = one(1)
        for number in range(2, many + 1):
            chosen = _choose(asked, order >= number, one(number), chosen)
        return chosen

    known = [solver.now, *earlier]
    one_back, tau_back = solver.back(1), before(asked, random, 1)
    corrected = of_order(
        before(asked, back, 1), most_back,
        lambda many: step(one_back, solver.here, tau_back, known, many, {_KEPT: 1.0}, _DRAWN),
    )  # fmt: skip
    start = _choose(asked, asked.done() >= 1, corrected, {X: 1.0})
    new = of_order(ahead, most, lambda many: step(solver.here, solver.there, random, known, many, start, NOISE))
    kept = {_KEPT: start, _DRAWN: {NOISE: 1.0}, **_shifted(_EARLIER[: len(earlier)], solver.now)}
    now = at(asked, asked.alphas, solver.times)
    return solver.columns({X: new, **kept}, draws=True, mixed=(xp.sqrt(now), xp.sqrt(1 - now)))


def _integrals(places: Sequence[Array], low: Array, high: Array, exp: Callable[[Any], Any], rate: Any) -> list[Any]:
    """Return integrals of exp(rate·t) times each polynomial that is 1 at its own place and 0 at the others."""
    moments: list[Any] = [(exp(rate * high) - exp(rate * low)) / rate]
    for power in range(1, len(places)):
        ends = high**power * exp(rate * high) - low**power * exp(rate * low)
        moments.append((ends - power * moments[-1]) / rate)
    found = []
    for own, place in enumerate(places):
        coefficients: list[Any] = [1.0]
        for other in (one for number, one in enumerate(places) if number != own):
            above, below = [0.0, *coefficients], [*coefficients, 0.0]
            coefficients = [(up - down * other) / (place - other) for up, down in zip(above, below, strict=True)]
        terms = [factor * moment for factor, moment in zip(coefficients, moments, strict=True)]
        found.append(sum(terms[1:], terms[0]))
    return found


def _edm_levels(asked: Asked) -> Array:
    own, xp = asked.settings, asked.xp
    least, most = xp.asarray(own["sigma_min"] * 1.0), xp.asarray(own["sigma_max"] * 1.0)
    if own["sigma_schedule"] == "karras":
        return karras(least, most, asked.ramp(), own["rho"])
    left = (asked.steps - 1 - asked.index) / xp.maximum(asked.steps - 1, 1)
    return xp.exp(xp.log(least) + left * (xp.log(most) - xp.log(least)))


def _preconditioned(asked: Asked, level: Array) -> dict[str, Any]:
    """Return the columns of a network that was trained as in table 1 of https://arxiv.org/abs/2206.00364."""
    data = asked.settings["sigma_data"]
    power, root = level * level + data * data, asked.xp.sqrt(level * level + data * data)
    sign = -1.0 if asked.settings["prediction_type"] == "v_prediction" else 1.0
    return {
        "picture": (data * data / power, sign * level * data / root),
        "mixed": (1.0, level),
        "scale": 1 / root,
        "first": math.sqrt(asked.settings["sigma_max"] ** 2 + 1),
    }


def _edm_euler(asked: Asked) -> Columns:
    here = _edm_levels(asked)
    there = following(asked, here, here[-1:] if asked.settings["final_sigmas_type"] == "sigma_min" else 0.0)
    return Columns(0.25 * asked.xp.log(here), following={X: _toward(there / here)}, **_preconditioned(asked, here))


def _edm_dpm(asked: Asked) -> Columns:
    own, here = asked.settings, _edm_levels(asked)
    there = following(asked, here, own["sigma_min"] if own["final_sigmas_type"] == "sigma_min" else 0.0)
    times = 0.25 * asked.xp.log(here)
    told = _preconditioned(asked, here)
    return _dpm_multistep(asked, _Solver(asked, times, here, there, {PICTURE: 1.0}, of_noise=False, told=told))


def _flow(asked: Asked) -> Columns:
    """Section 2 of https://arxiv.org/abs/2403.03206, with the shifts of its section 5.3.2."""
    own, trained = asked.settings, asked.settings["num_train_timesteps"]
    dynamic, fixed = asked.on("use_dynamic_shifting"), own["shift"]

    def shifted(share: Any) -> Any:
        return fixed * share / (1 + (fixed - 1) * share)

    least = 1 / trained if dynamic else shifted(1 / trained)
    if asked.even:
        least = 1 / asked.steps
    share = 1 + asked.ramp() * (least - 1)
    if dynamic:
        bend = asked.xp.exp(asked.shift) if own["time_shift_type"] == "exponential" else asked.shift
        level = bend / (bend + (1 / share - 1))
    else:
        level = shifted(share)
    if own["shift_terminal"]:
        level = 1 - (1 - level) / ((1 - level[-1:]) / (1 - own["shift_terminal"]))
    other = converted(asked, level[-1:], level[:1])
    level = level if other is None else other
    if asked.on("invert_sigmas"):
        level = 1 - level
    there = following(asked, level, 1.0 if asked.on("invert_sigmas") else 0.0)
    new: Sum = {X: 1.0, OUTPUT: there - level}
    if random := asked.on("stochastic_sampling"):
        new = {PICTURE: 1 - there, NOISE: there}
    return Columns(level * trained, (1.0, -level), {X: new}, (1 - level, level), draws=random)


FORMULAS: Final[Mapping[str, Callable[[Asked], Columns]]] = {
    "DDIMParallelScheduler": _ddim,
    "DDIMScheduler": _ddim,
    "DDPMParallelScheduler": _ddpm,
    "DDPMScheduler": _ddpm,
    "DEISMultistepScheduler": _deis,
    "DPM++ 2S a": _dpmpp_2s_ancestral,
    "DPMSolverMultistepScheduler": _dpm_multistep,
    "DPMSolverSDEScheduler": _sde,
    "DPMSolverSinglestepScheduler": _dpm_singlestep,
    "EDMDPMSolverMultistepScheduler": _edm_dpm,
    "EDMEulerScheduler": _edm_euler,
    "EulerAncestralDiscreteScheduler": _euler_ancestral,
    "EulerDiscreteScheduler": _euler,
    "FlowMatchEulerDiscreteScheduler": _flow,
    "HeunDiscreteScheduler": _heun,
    "KDPM2AncestralDiscreteScheduler": partial(_dpm2, ancestral=True),
    "KDPM2DiscreteScheduler": _dpm2,
    "LCMScheduler": _lcm,
    "LMSDiscreteScheduler": _lms,
    "PNDMScheduler": _pndm,
    "Restart": _restart,
    "SASolverScheduler": _sa,
    "TCDScheduler": _tcd,
    "UniPCMultistepScheduler": _unipc,
}
"""Class of diffusers, or sampler that it has no class for → its formulas; some are the same for two."""
