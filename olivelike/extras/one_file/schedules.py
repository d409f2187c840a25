"""Schedulers as tables of coefficients, computed in the graph from the number of steps.

A step of each is linear in the latents x, what the UNet predicts m, the picture that this foretells x0, and noise z:

    x0 = p·x + q·m
    x' = a·x + b·x0 + c·(x0 of the step before) + n·z

where the UNet gets s·x at the timestep t. So one loop serves all, and a scheduler is a table of t, s, p, q, a, b, c, n
per step. Formulas are those of diffusers' classes, whose settings they follow; they are evaluated in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.extras.one_file.arithmetic import Number, Writer

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView

    Table = tuple[list[Number], Number]
    """Columns of shape (steps,) and the factor of the initial noise, of shape (1,), all float64."""

SCHEDULERS: Final = ("DDIM", "Euler", "Euler a", "DPM++ 2M", "LCM")
"""A1111's names of those of the loop, which the file's input `scheduler` takes."""

NOISE: Final = frozenset({"Euler a", "LCM"})
"""Samplers that add noise in each step but the last."""

COLUMNS: Final = ("t", "s", "p", "q", "a", "b", "c", "n")

_ONLY: Final[Mapping[str, object]] = {
    "clip_sample": False,
    "thresholding": False,
    "interpolation_type": "linear",
    "final_sigmas_type": "zero",
    "timestep_type": "discrete",
    "use_lu_lambdas": False,
    "use_flow_sigmas": False,
    "lambda_min_clipped": -np.inf,
}
"""Settings that the formulas know one value of."""

_LEAST: Final = 1e-30


@dataclass(frozen=True)
class Schedule:
    """A scheduler with its settings, those of its class filled in."""

    name: str
    settings: JsonView


def check_schedules(schedules: Sequence[Schedule]) -> None:
    """Refuse settings that the formulas do not know.

    Raises:
        PassError: naming scheduler and setting.
    """
    for schedule in schedules:
        for key, known in _ONLY.items():
            value = schedule.settings.get(key, known)
            if value != known and value is not None:
                raise PassError(
                    f"layout single: this checkpoint's {schedule.name} has {key}: {value!r}, which the loop in one "
                    f"file has no arithmetic for ({known!r} alone); take another layout"
                )


def coefficients(
    writer: Writer, schedules: Sequence[Schedule], alphas: np.ndarray[Any, Any], scheduler: Number, steps: Number
) -> tuple[Number, Number]:
    """Return the table of one of several schedulers: float32 of shape (steps, 8), and of the initial noise's factor.

    Args:
        writer: Of the graph around the loop, with floats of 64 bits.
        schedules: In the order of indices.
        alphas: Products of alphas per timestep, float32.
        scheduler: Index of the one that is asked for, int64 of shape (1,).
        steps: How many, int64 of shape (1,).
    """
    known = len(alphas)
    steps, scheduler = writer.here(steps), writer.here(scheduler)
    fits = writer.op("And", steps >= writer.integers(1), steps <= writer.integers(known))
    checked = steps + writer.require(fits, f"steps must be 1 to {known}")
    # Signal at the last timestep, where there is none: as in diffusers, for schedulers that divide by it.
    safe = np.where(alphas == 0, np.float32(2**-24), alphas)
    facts = _Facts(
        writer,
        checked.cast(ir.DataType.DOUBLE),
        writer.op("Range", *(writer.constant(0, np.int64), _scalar(checked), writer.constant(1, np.int64))).cast(
            ir.DataType.DOUBLE
        ),
        known,
        writer.constant(alphas),
        writer.constant(np.sqrt((1 - safe) / safe)),
        scheduler,
    )
    tables = [_FORMULAS[schedule.name](schedule.settings, facts) for schedule in schedules]
    columns = writer.stack([writer.stack(table[0]) for table in tables])
    factors = writer.op("Concat", *(table[1] for table in tables), axis=0)
    chosen = writer.op("Squeeze", columns.at(scheduler), writer.integers(0))
    return (
        chosen.apply("Transpose", perm=[1, 0]).cast(ir.DataType.FLOAT),
        factors.at(scheduler).cast(ir.DataType.FLOAT),
    )


@dataclass(frozen=True)
class _Facts:
    """Values that all formulas use."""

    writer: Writer
    steps: Number
    """Float64 of shape (1,)."""
    index: Number
    """Number of each step: 0, 1, …; float64 of shape (steps,)."""
    trained: int
    """Timesteps that the network was trained on."""
    alphas: Number
    sigmas: Number
    scheduler: Number

    def timesteps(self, settings: JsonView, *, more: int = 0, rounded: bool = True) -> Number:
        """Return the timesteps; `more` of them are spaced, of which the last are left out."""
        spacing, steps = settings["timestep_spacing"], self.steps + more
        if spacing == "trailing":
            # NumPy's `arange` takes the gap between its first two numbers: at ties that decides.
            gap = (self.trained - self.trained / self.steps) - self.trained
            return (self.trained + self.index * gap).apply("Round") - 1.0
        left = steps - 1.0 - self.index
        if spacing == "leading":
            offset: int = settings.get("steps_offset", 0)
            return left * (self.trained / steps).apply("Floor") + offset
        gaps = self.writer.op("Max", steps - 1.0, self.writer.constant(1.0))
        linear = left * ((self.trained - 1) / gaps)
        return linear.apply("Round") if rounded else linear

    def alpha(self, timesteps: Number, before: Number | float) -> Number:
        """Return products of alphas; `before` the first timestep it is another number."""
        zero = self.writer.constant(0.0)
        known = self.alphas.at(self.writer.op("Max", timesteps, zero).cast(ir.DataType.INT64))
        return (timesteps >= zero).where(known, before)

    def sigma(self, timesteps: Number) -> Number:
        """Return noise levels, on the line between those of whole timesteps."""
        last = self.writer.constant(float(self.trained - 1))
        place = self.writer.op("Min", timesteps, last)
        below = place.apply("Floor")
        above = self.writer.op("Min", below + 1.0, last)
        low, high = (self.sigmas.at(one.cast(ir.DataType.INT64)) for one in (below, above))
        return low + (place - below) * (high - low)

    def following(self, values: Number, last: float) -> Number:
        """Return the value of each next step, and one behind the last."""
        return self.writer.op("Concat", values.slice(1), self.writer.constant([last]), axis=0)

    def is_last(self) -> Number:
        """Say of each step whether it is the last."""
        return self.index >= self.steps - 1.0

    def columns(self, *columns: Number | float) -> list[Number]:
        """Return columns in the shape (steps,)."""
        zeros = self.index * 0.0
        return [column if isinstance(column, Number) else zeros + column for column in columns]


def _scalar(value: Number) -> Number:
    return value.writer.op("Squeeze", value, value.writer.integers(0))


def _foretold(settings: JsonView, signal: Number, noise: Number) -> tuple[Number | float, Number | float]:
    """Return p and q for latents that are so much signal and so much noise."""
    match settings["prediction_type"]:
        case "epsilon":
            return 1.0 / signal, -(noise / signal)
        case "v_prediction":
            # v = signal·noise - noise·picture, for latents whose squares add up to 1.
            power = (signal * signal + noise * noise).sqrt()
            return signal / (power * power), -(noise / power)
        case "sample":
            return 0.0, 1.0
    raise PassError(
        f"layout single: the UNet predicts {settings['prediction_type']!r}, which the loop in one file has no "
        "arithmetic for; take another layout"
    )


def _ddim(settings: JsonView, facts: _Facts) -> Table:
    """https://arxiv.org/abs/2010.02502, formula 12 with eta 0."""
    times = facts.timesteps(settings)
    final = 1.0 if settings["set_alpha_to_one"] else facts.alphas.slice(0, 1)
    here = facts.alphas.at(times.cast(ir.DataType.INT64))
    there = facts.alpha(times - (facts.trained / facts.steps).apply("Floor"), final)
    signal, noise = here.sqrt(), (1.0 - here).sqrt()
    kept = (1.0 - there).sqrt() / noise
    columns = facts.columns(
        times, 1.0, *_foretold(settings, signal, noise), kept, there.sqrt() - kept * signal, 0.0, 0.0
    )
    return columns, facts.writer.constant([1.0])


def _sigma_scale(settings: JsonView, sigmas: Number) -> Number:
    first = sigmas.slice(0, 1)
    return (first * first + 1.0).sqrt() if settings["timestep_spacing"] == "leading" else first


def _euler(settings: JsonView, facts: _Facts) -> Table:
    """Algorithm 2 of https://arxiv.org/abs/2206.00364 without churn."""
    times = facts.timesteps(settings, rounded=False)
    here = facts.sigma(times)
    kept = facts.following(here, 0.0) / here
    one = facts.index * 0.0 + 1.0
    scale = 1.0 / (here * here + 1.0).sqrt()
    columns = facts.columns(times, scale, *_foretold(settings, one, here), kept, 1.0 - kept, 0.0, 0.0)
    return columns, _sigma_scale(settings, here)


def _euler_ancestral(settings: JsonView, facts: _Facts) -> Table:
    """k-diffusion's `sample_euler_ancestral`: down to less noise than the next step has, and fresh noise on top."""
    times = facts.timesteps(settings, rounded=False)
    here = facts.sigma(times)
    there = facts.following(here, 0.0)
    up = (there * there * (here * here - there * there) / (here * here)).sqrt()
    kept = (there * there - up * up).sqrt() / here
    one = facts.index * 0.0 + 1.0
    scale = 1.0 / (here * here + 1.0).sqrt()
    columns = facts.columns(times, scale, *_foretold(settings, one, here), kept, 1.0 - kept, 0.0, up)
    return columns, _sigma_scale(settings, here)


def _dpm_multistep(settings: JsonView, facts: _Facts) -> Table:
    """DPM-Solver++(2M), algorithm 2 of https://arxiv.org/abs/2211.01095; first and last step are of first order."""
    times = facts.timesteps(settings, more=0 if settings["timestep_spacing"] == "trailing" else 1)
    here = facts.sigma(times)
    there = facts.following(here, 0.0)
    before = facts.writer.op("Concat", here.slice(0, 1), here.slice(0, -1), axis=0)
    signal, signal_there = (1.0 / (sigma * sigma + 1.0).sqrt() for sigma in (here, there))
    second = facts.writer.op("And", facts.index >= 1.0, facts.is_last().apply("Not"))
    step = (here / facts.writer.op("Max", there, facts.writer.constant(_LEAST))).apply("Log")
    step_before = second.where((before / here).apply("Log"), 1.0)
    share = second.where(step / step_before, 0.0) * 0.5
    moved = signal_there * (1.0 - there / here)
    columns = facts.columns(
        times,
        1.0,
        *_foretold(settings, signal, here * signal),
        there * signal_there / (here * signal),
        moved * (1.0 + share),
        -(moved * share),
        0.0,
    )
    return columns, facts.writer.constant([1.0])


def _lcm(settings: JsonView, facts: _Facts) -> Table:
    """https://arxiv.org/abs/2310.04378, algorithm 3: to the picture and back to noise, on the distilled timesteps."""
    writer, original = facts.writer, settings["original_inference_steps"]
    asked = writer.op("Equal", facts.scheduler, writer.integers(list(_FORMULAS).index("LCM")))
    fits = writer.op("Or", asked.apply("Not"), facts.steps <= float(original))
    checked = writer.require(fits, f"LCM takes at most {original} steps").cast(ir.DataType.DOUBLE)
    jump = facts.trained // original
    place = (facts.index * (original / facts.steps)).apply("Floor") + checked
    times = (original - place) * float(jump) - 1.0
    here = facts.alphas.at(times.cast(ir.DataType.INT64))
    last = facts.is_last()
    there = last.where(1.0, facts.alphas.at(facts.following(times, 0.0).cast(ir.DataType.INT64)))
    scaled = times * settings["timestep_scaling"]
    skip = 0.25 / (scaled * scaled + 0.25)
    out = scaled / (scaled * scaled + 0.25).sqrt()
    signal, noise = here.sqrt(), (1.0 - here).sqrt()
    columns = facts.columns(
        times,
        1.0,
        *_foretold(settings, signal, noise),
        there.sqrt() * skip,
        there.sqrt() * out,
        0.0,
        (1.0 - there).sqrt(),
    )
    return columns, writer.constant([1.0])


_FORMULAS: Final[Mapping[str, Callable[[JsonView, _Facts], Table]]] = {
    "DDIM": _ddim,
    "Euler": _euler,
    "Euler a": _euler_ancestral,
    "DPM++ 2M": _dpm_multistep,
    "LCM": _lcm,
}
