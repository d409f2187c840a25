"""Timesteps and noise levels of steps, as diffusers' schedulers space them.

All is written with NumPy's names over an array interface, `xp`: NumPy itself, or one that writes nodes of a graph in
which the number of steps is not known yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from olivelike.families.family import Family
from olivelike.model.scheduler_settings import LEAVES_OUT, TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from olivelike._untrusted import JsonView
    from olivelike.model.architecture import Config

Array = Any
"""One dimension of float64 of NumPy, or of a graph in the making."""

_LEAST_SIGNAL: Final = 2.0**-24
_RHO: Final = 7.0
"""Exponent of https://arxiv.org/abs/2206.00364."""
_SHAPE: Final = 0.6
"""Both parameters of the Beta distribution, as in https://arxiv.org/abs/2407.12173."""


@dataclass(frozen=True)
class Asked:
    """What a table of steps is asked for."""

    xp: Any
    """Array interface."""
    settings: JsonView
    """Settings of the scheduler's class, whole."""
    steps: Any
    skipped: Any = 0
    """Steps at the beginning that are left out, for a picture to start from."""
    eta: float = 0.0
    shift: Any = 0.0
    """Shift of a flow, where it depends on the picture's size."""
    even: bool = False
    """Whether a flow falls evenly to one step's share, and not to the last timestep."""
    aligned: Sequence[float] = Family.aligned_levels
    """Noise levels of Align Your Steps for the family, falling."""

    @property
    def trained(self) -> int:
        """Timesteps that the network was trained on."""
        trained: int = self.settings["num_train_timesteps"]
        return trained

    @cached_property
    def alphas(self) -> Array:
        """Products of alphas per timestep."""
        return np.asarray(alphas_of(self.settings), np.float64)

    @cached_property
    def levels(self) -> Array:
        """Noise per timestep, as a share of the signal; where nothing of that is left at the end, a little is."""
        kept = self.alphas.copy()
        if self.on("rescale_betas_zero_snr"):
            kept[-1] = _LEAST_SIGNAL
        return np.sqrt((1 - kept) / kept)

    @cached_property
    def index(self) -> Array:
        """Number of each step, from 0."""
        return self.xp.arange(self.steps) * 1.0

    def is_last(self) -> Array:
        """Say of each step whether it is the last."""
        return self.index >= self.steps - 1

    def done(self) -> Array:
        """Return how many steps are done before each."""
        return self.index - self.skipped

    def spacing(self, levels: Callable[[Asked], tuple[Array, ...]]) -> tuple[Array, ...]:
        """Return timesteps and noise levels that settings of spacing decide, and nothing else of a formula."""
        return levels(self)

    def on(self, name: str) -> bool:
        """Say whether a switch is on."""
        return bool(self.settings.get(name, False))

    def ramp(self) -> Array:
        """Return numbers from 0 to 1, one for each step."""
        return self.index / self.xp.maximum(self.steps - 1, 1)


def spaced(asked: Asked, *, more: int = 0, ends: int | None = None, rounded: bool = True) -> Array:
    """Return the timesteps, falling.

    Args:
        asked: Steps and settings.
        more: Timesteps that are spaced beside those of the steps, and left out at the end.
        ends: Number of timesteps that are spaced, if not all.
        rounded: Whether evenly spaced ones are whole numbers; others always are.
    """
    xp, steps, trained = asked.xp, asked.steps, ends or asked.trained
    left = steps + more - 1 - asked.index
    match asked.settings.get("timestep_spacing", "linspace"):
        case "trailing":
            # NumPy's `arange` takes the gap between its first two numbers: at ties that decides.
            gap = (trained - asked.trained / steps) - trained
            return xp.round(trained + asked.index * gap) - 1
        case "leading":
            return left * (trained // (steps + more)) + asked.settings["steps_offset"]
    even = left * ((trained - 1) / xp.maximum(steps + more - 1, 1))
    return xp.round(even) if rounded else even


def following(asked: Asked, values: Array, last: Any) -> Array:
    """Return the value of each next step, and one behind the last."""
    return asked.xp.concatenate([values[1:], asked.xp.zeros(1) + last])


def before(asked: Asked, values: Array, steps: int) -> Array:
    """Return the value of so many steps before each; for the first ones, that of the first."""
    return pick(asked, values, asked.xp.maximum(asked.index - steps, 0))


def pick(asked: Asked, values: Array, places: Array) -> Array:
    """Return the values at places."""
    return asked.xp.take(values, places.astype(np.int64))


def at(asked: Asked, table: Array, timesteps: Array) -> Array:
    """Return what a table has at whole timesteps; before the first and behind the last, what it has there."""
    xp = asked.xp
    return pick(asked, xp.asarray(table), xp.minimum(xp.maximum(timesteps, 0), len(table) - 1))


def level_at(asked: Asked, timesteps: Array) -> Array:
    """Return noise levels, on the line between those of whole timesteps."""
    return _on_line(asked, asked.levels, timesteps)


def _on_line(asked: Asked, table: Array, places: Array) -> Array:
    low = asked.xp.floor(places)
    below, above = at(asked, table, low), at(asked, table, low + 1)
    return below + (places - low) * (above - below)


def timestep_of(asked: Asked, levels: Array) -> Array:
    """Return the timesteps of noise levels, on the line between the logarithms of those of whole timesteps."""
    xp = asked.xp
    # Diffusers keeps this table in 32 bits; where it cuts timesteps off, the last bit of it decides.
    known = np.log(np.float32(asked.levels)).astype(np.float64)
    sought = xp.log(xp.maximum(levels, 1e-10))
    low = xp.searchsorted(xp.asarray(known), sought, side="right") - 1.0
    low = xp.minimum(xp.maximum(low, 0), len(known) - 2)
    below, above = at(asked, known, low), at(asked, known, low + 1)
    share = xp.minimum(xp.maximum((below - sought) / (below - above), 0), 1)
    return (1 - share) * low + share * (low + 1)


def _normal(asked: Asked) -> tuple[Array, Array]:
    """Space timesteps evenly from the last to the first, with levels on the line between logarithms."""
    times = (asked.trained - 1) * (1 - asked.ramp())
    return times, asked.xp.exp(_on_line(asked, np.log(asked.levels), times))


def _simple(asked: Asked) -> tuple[Array, Array]:
    """Take every so many of the timesteps, from the last on."""
    times = asked.trained - 1 - asked.xp.floor(asked.index * (asked.trained / asked.steps))
    return times, at(asked, asked.levels, times)


def _ddim(asked: Asked) -> tuple[Array, Array]:
    """Take timesteps a whole stride apart, from the second one on; the largest that the stride reaches is left out."""
    times = 1 + (asked.steps - 1 - asked.index) * (asked.trained // asked.steps)
    return times, at(asked, asked.levels, times)


def _kl_optimal(asked: Asked) -> tuple[Array, Array]:
    """Space arctangents of levels evenly: theorem 3.1 of https://arxiv.org/abs/2404.14507."""
    xp = asked.xp
    largest, least = (float(np.arctan(asked.levels[end])) for end in (-1, 0))
    angle = largest + asked.ramp() * (least - largest)
    level = xp.sin(angle) / xp.cos(angle)
    return timestep_of(asked, level), level


def _align_your_steps(asked: Asked) -> tuple[Array, Array]:
    """Take the family's levels, or as many on the lines between their logarithms."""
    known = np.log(np.asarray(asked.aligned, np.float64))
    level = asked.xp.exp(_on_line(asked, known, asked.ramp() * (len(known) - 1)))
    return timestep_of(asked, level), level


TYPES: Final[Mapping[str, Callable[[Asked], tuple[Array, Array]]]] = {
    "Normal": _normal,
    "Simple": _simple,
    "DDIM": _ddim,
    "KL Optimal": _kl_optimal,
    "Align Your Steps": _align_your_steps,
}
"""Schedule type of A1111's `modules/sd_schedulers.py` → timesteps and noise levels, of which the last leads to none.

Align Your Steps ends as there: https://research.nvidia.com/labs/toronto-ai/AlignYourSteps/howto.html and diffusers have
no noise in place of the last level. KL Optimal is ComfyUI's, whose levels are as many as steps; A1111 has one more, and
leaves it in the picture.
"""


def of_type(asked: Asked) -> tuple[Array, Array] | None:
    """Return timesteps and noise levels of the schedule type, if it is one of `TYPES`."""
    kind = asked.settings.get(TYPE)
    if kind is None or not asked.on(LEAVES_OUT):
        return None if kind is None else TYPES[kind](asked)
    times, here = TYPES[kind](replace(asked, steps=asked.steps + 1))
    return times[:-1], here[:-1]


def converted(asked: Asked, least: Any, largest: Any) -> Array | None:
    """Return noise levels of the Karras, exponential or Beta schedule between two; `None` where it is none of these."""
    xp, own = asked.xp, asked.settings
    least = least if own.get("sigma_min") is None else xp.asarray(own["sigma_min"] * 1.0)
    largest = largest if own.get("sigma_max") is None else xp.asarray(own["sigma_max"] * 1.0)
    if asked.on("use_karras_sigmas"):
        return karras(least, largest, asked.ramp())
    if asked.on("use_exponential_sigmas") or asked.on("use_lu_lambdas"):
        return xp.exp(xp.log(largest) + asked.ramp() * (xp.log(least) - xp.log(largest)))
    if asked.on("use_beta_sigmas"):
        return least + beta_quantile(xp, 1 - asked.ramp()) * (largest - least)
    return None


def karras(least: Any, largest: Any, share: Array, rho: float = _RHO) -> Array:
    """Return noise levels evenly spaced under a root: formula 5 of https://arxiv.org/abs/2206.00364.

    `share` says how far each is on the way from the largest to the least.
    """
    low, high = least ** (1 / rho), largest ** (1 / rho)
    return (high + share * (low - high)) ** rho


def beta_quantile(xp: Any, shares: Array) -> Array:
    """Return quantiles of the Beta distribution with both parameters 0.6, as SciPy's to 1e-12.

    Below a half they are a smooth function of `(p · a · B(a, a))^(1/a)`, which a polynomial holds, and the other half
    is its mirror.
    """
    coefficients, most = _quantile_polynomial()
    small = xp.minimum(shares, 1 - shares)
    lead = (small * (_SHAPE * _beta_function())) ** (1 / _SHAPE)
    place = lead * (2 / most) - 1
    after, last = 0.0, 0.0
    for coefficient in coefficients[:0:-1]:
        after, last = 2 * place * after - last + coefficient, after
    found = lead * (place * after - last + coefficients[0])
    return xp.where(shares > 0.5, 1 - found, found)


def _beta_function() -> float:
    return math.gamma(_SHAPE) ** 2 / math.gamma(2 * _SHAPE)


@cache
def _quantile_polynomial() -> tuple[list[float], float]:
    """Return Chebyshev coefficients of the quantile as a multiple of its leading term, and the largest of that."""
    terms, degree = 60, 14
    factors = np.cumprod([1.0, *((k - _SHAPE) / k for k in range(1, terms))])
    series = factors / (_SHAPE + np.arange(terms)) * _SHAPE

    def lead(quantile: Array) -> Array:
        return quantile * np.polynomial.polynomial.polyval(quantile, series) ** (1 / _SHAPE)

    most = float(lead(0.5))
    place = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    wanted = found = most * (place + 1) / 2
    for _ in range(60):
        found = found + (wanted - lead(found)) / 2  # The slope of `lead` is from 1 to 1.4.
    return [float(one) for one in np.polynomial.chebyshev.chebfit(place, found / wanted, degree)], most


SCHEDULER_FILE: Final = "scheduler/scheduler_config.json"
_MOST_BETA: Final = 0.999
_MOST_MOMENTS: Final = 1_000_000

Floats = np.ndarray[Any, np.dtype[np.float32]]


def alphas_of(config: Config) -> Floats:
    """Return the products of alphas that a scheduler's config leads to, one per timestep.

    As torch's `cumprod`: of numbers of 32 bits, multiplied in 64, and rounded again. Raises `KeyError`, `ValueError` or
    `TypeError` if the config leads to none.
    """
    betas = _betas(config)
    return _products(_without_signal_at_the_end(betas) if config.get("rescale_betas_zero_snr", False) else betas)


def _products(betas: Floats) -> Floats:
    return np.cumprod(1 - betas, dtype=np.float64).astype(np.float32)


def _betas(config: Config) -> Floats:
    if (trained := config.get("trained_betas")) is not None:
        betas = np.array(trained, np.float32)
        if betas.ndim != 1 or not betas.size:
            raise ValueError("trained_betas is no list of numbers")
        return betas
    count, kind = int(config["num_train_timesteps"]), config["beta_schedule"]
    if not 0 < count <= _MOST_MOMENTS:
        raise ValueError(f"num_train_timesteps is {count}")
    first, last = float(config["beta_start"]), float(config["beta_end"])
    if kind == "linear":
        return np.linspace(first, last, count, dtype=np.float32)
    if kind == "scaled_linear":
        roots = np.linspace(math.sqrt(first), math.sqrt(last), count, dtype=np.float32)
        squares: Floats = roots**2
        return squares
    if kind == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-np.linspace(-6, 6, count))) * (last - first) + first, np.float32)
    if kind not in _BARS:
        raise ValueError(f"beta_schedule is {kind!r}")
    bars = _BARS[kind](np.arange(count + 1) / count)
    return np.asarray(np.minimum(1 - bars[1:] / bars[:-1], _MOST_BETA), np.float32)


def _laplace(time: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ratio = (1 - 2 * np.abs(0.5 - time) + 1e-6) ** (-0.5 * np.copysign(1, 0.5 - time))
    return np.asarray(np.sqrt(ratio / (1 + ratio)))


_BARS: Final[Mapping[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]] = {
    "squaredcos_cap_v2": lambda time: np.cos((time + 0.008) / 1.008 * np.pi / 2) ** 2,
    "laplace": _laplace,
    "exp": lambda time: np.exp(-12.0 * time),
}
"""Schedules by what is left of the signal at a share of the time."""


def _without_signal_at_the_end(betas: Floats) -> Floats:
    """Return betas whose last step is noise alone: algorithm 1 of https://arxiv.org/abs/2305.08891."""
    roots = np.sqrt(_products(betas))
    bars = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2
    return np.asarray(1 - np.concatenate([bars[:1], bars[1:] / bars[:-1]]), np.float32)
