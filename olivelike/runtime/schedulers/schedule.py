"""A schedule: what each call of the network is given, and what its output is made of, as a table of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from olivelike.errors import SourceError, UsageError
from olivelike.families.family import Family
from olivelike.model.scheduler_settings import LEAVES_OUT, TYPE
from olivelike.runtime.schedulers.formulas import FORMULAS, NOISE, OUTPUT, PICTURE, Columns, X
from olivelike.runtime.schedulers.scheduler_names import FLOW
from olivelike.runtime.schedulers.spacing import Asked

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.runtime.schedulers.class_settings import SchedulerSettings

_MOST_STEPS: Final = 10_000

Table = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A scheduler for a number of steps.

    Latents, outputs, pictures and noise are arrays of shape (pictures, channels, height, width);
    coefficients multiply them as plain numbers, so that they stay what they are.
    """

    name: str
    """Class of diffusers, or the sampler that it has none for."""
    timesteps: Table
    """One for each call of the network."""
    scale: Table
    """Factor of the network's input, by call."""
    picture: Table
    """Coefficients of latents and output in the picture that they foretell, by call: of shape (calls, 2)."""
    following: Table
    """Coefficients of `terms`, by call and value: of shape (calls, values, terms)."""
    mixed: Table
    """Signal and noise of a picture that denoising starts from, by call: of shape (calls, 2)."""
    draws: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether noise is drawn for a call."""
    spans: Table | None
    """Noise levels between which Brownian noise is taken, by call, for schedulers that need it: (calls, 2)."""
    first: float
    """Factor of the initial noise."""
    order: int
    """Calls of a step."""
    begin: int = 0
    """First call that runs."""
    most: float | None = None
    """Range that the foretold picture is clipped to."""
    threshold: tuple[float, float] | None = None
    """Quantile of the foretold picture that becomes its range, and the most that this may be."""

    @property
    def kept(self) -> tuple[Any, ...]:
        """Values beside the latents that a call hands on to the next one, before the first."""
        return tuple(0.0 for _ in self.following[0][1:])

    @property
    def calls(self) -> range:
        """Calls that run."""
        return range(self.begin, len(self.timesteps))

    def scaled(self, latents: Any, call: int) -> Any:
        """Return what the network takes for latents."""
        return latents if self.scale[call] == 1 else latents * float(self.scale[call])

    def mix(self, picture: Any, noise: Any, call: int) -> Any:
        """Return a picture's latents with the noise that they have before a call."""
        return _total(self.mixed[call], (picture, noise))

    def advance(
        self, call: int, latents: Any, kept: Sequence[Any], output: Any, noise: Any = 0.0
    ) -> tuple[Any, tuple[Any, ...], Any]:
        """Return the next latents, what is kept, and the picture that the output foretells.

        Args:
            call: Number of the call, from 0.
            latents: What the call was made for, before `scaled`.
            kept: What the call before returned; `Schedule.kept` for the first one.
            output: What the network returned.
            noise: Standard normal; used where the schedule `draws` any.
        """
        picture = _total(self.picture[call], (latents, output))
        if self.threshold is not None:
            picture = _thresholded(picture, *self.threshold)
        elif self.most is not None:
            picture = picture.clip(-self.most, self.most)
        terms = (latents, picture, output, noise, *kept)
        after, *others = (_total(row, terms) for row in self.following[call])
        return after, tuple(others), picture


def _total(coefficients: Table, terms: Sequence[Any]) -> Any:
    parts = [float(factor) * term for factor, term in zip(coefficients, terms, strict=True) if factor]
    return sum(parts[1:], parts[0]) if parts else 0.0


def _thresholded(picture: Any, share: float, most: float) -> Any:
    """Return pictures whose largest values are cut off: section 2.3 of https://arxiv.org/abs/2205.11487."""
    found = picture.clip(-most, most)
    for place, one in enumerate(picture):
        limit = min(max(float(np.quantile(abs(one), share)), 1.0), most)
        found[place] = one.clip(-limit, limit) / limit
    return found


def make_schedule(
    chosen: SchedulerSettings,
    steps: int,
    *,
    strength: float | None = None,
    runs: int = 0,
    eta: float = 0.0,
    shift: float = 0.0,
    even: bool = False,
    aligned: tuple[float, ...] = Family.aligned_levels,
) -> Schedule:
    """Return the table of a scheduler; the same one again for a while, so that nobody may write into it.

    Raises `UsageError` if the scheduler can't take so many steps, and `SourceError` if its config leads to no numbers.

    Args:
        chosen: The scheduler.
        steps: Steps from noise to a picture.
        strength: Share of them that runs, for a picture to start from; `None` is all.
        runs: How many of them run, where that is asked for in place of a share.
        eta: Share of each step's noise that is drawn afresh, where a scheduler has such a share.
        shift: What `shift_by_size` returns.
        even: Whether a flow falls evenly to one step's share.
        aligned: Noise levels of Align Your Steps for the family.
    """
    _check_steps(chosen, steps)
    skipped = steps - runs if runs else _skipped(chosen, steps, strength)
    try:
        return _made(chosen.class_name, json.dumps(chosen.settings), steps, skipped, eta, float(shift), even, aligned)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError) as error:
        raise SourceError(
            f"scheduler_config.json makes no {chosen.class_name}: {error}; repair the file, or make the folder again"
        ) from error


def _skipped(chosen: SchedulerSettings, steps: int, strength: float | None) -> int:
    """Return the steps that are left out at the beginning; pipelines of flows run the step that a share cuts."""
    if strength is None:
        return 0
    return int(max(steps - steps * strength, 0)) if chosen.class_name in FLOW else max(steps - int(steps * strength), 0)


@lru_cache(maxsize=8)
def _made(class_name: str, settings: str, *asked: Any) -> Schedule:
    """Make a table; `settings` are JSON, so that it is kept by values."""
    with np.errstate(all="ignore"):
        return _table(class_name, Asked(np, json.loads(settings), *asked))


def _table(class_name: str, asked: Asked) -> Schedule:
    own = asked.settings
    columns = FORMULAS[class_name](asked)
    timesteps = np.asarray(columns.timesteps, np.float64)
    begin = asked.skipped * columns.order

    def column(value: Any) -> Table:
        return np.broadcast_to(np.asarray(value, np.float64), timesteps.shape)

    values = list(columns.following)
    terms = (X, PICTURE, OUTPUT, NOISE, *values[1:])
    sums = [[column(columns.following[value].get(term, 0.0)) for term in terms] for value in values]
    schedule = Schedule(
        class_name,
        timesteps,
        column(columns.scale),
        np.stack([column(one) for one in columns.picture], axis=-1),
        np.moveaxis(np.array(sums), 2, 0),
        np.stack([column(one) for one in columns.mixed], axis=-1),
        np.broadcast_to(columns.draws, timesteps.shape),
        None if columns.spans is None else np.stack([column(one) for one in columns.spans], axis=-1),
        float(np.reshape(columns.first, ())),
        columns.order,
        begin,
        float(own["clip_sample_range"]) if columns.clips and own["clip_sample"] else None,
        threshold_of(columns, own),
    )
    for name in ("timesteps", "scale", "picture", "following", "mixed", "first"):
        found = np.asarray(getattr(schedule, name))
        if not np.isfinite(found[begin:] if name != "first" else found).all():
            raise ValueError(f"with {asked.steps} steps its table of {name} holds what is no number")
        found.flags.writeable = False
    return schedule


def threshold_of(columns: Columns, own: JsonView) -> tuple[float, float] | None:
    """Return how the foretold picture is thresholded, if it is."""
    if not (columns.thresholds and own["thresholding"]):
        return None
    return float(own["dynamic_thresholding_ratio"]), float(own["sample_max_value"])


_WHOLE_STRIDES: Final = {"Simple": 0, "DDIM": 1}
"""Schedule types that take each timestep once at most → timesteps that they have no use for."""
_BY_TIMESTEP: Final = frozenset({"DDIMParallelScheduler", "DDIMScheduler", "DDPMParallelScheduler", "DDPMScheduler"})
_RUNGE_KUTTA_STEPS: Final = 4


def steps_taken(chosen: SchedulerSettings) -> tuple[int, int, str]:
    """Return the least and most steps of a scheduler, and why that is."""
    own, least, most, why = chosen.settings, 1, _MOST_STEPS, ""
    if chosen.class_name in _BY_TIMESTEP:
        most, why = own["num_train_timesteps"], ", as many as the network was trained on"
    if (unused := _WHOLE_STRIDES.get(own.get(TYPE, ""))) is not None:
        unused += bool(own.get(LEAVES_OUT))
        most, why = own["num_train_timesteps"] - unused, f", as many timesteps as {own[TYPE]} can take"
    if "original_inference_steps" in own:
        most, why = own["original_inference_steps"], ", as many as the network was distilled on"
    if own.get("skip_prk_steps") is False:
        least, why = _RUNGE_KUTTA_STEPS, " with skip_prk_steps false"
    return least, most, why


def _check_steps(chosen: SchedulerSettings, steps: int) -> None:
    """Refuse a number of steps that a scheduler does not have. Raises `UsageError`."""
    least, most, why = steps_taken(chosen)
    if not least <= steps <= most:
        raise UsageError(
            f"{chosen.class_name} refuses {steps} steps: it takes {least} to {most}{why}; take another number of "
            "steps, or another scheduler"
        )


def shift_by_size(
    config: JsonView, tokens: Any, steps: Any = 0, own: Callable[[Any, Any, Any], Any] | None = None, xp: Any = np
) -> Any:
    """Return the shift of a schedule that depends on the picture's size; 0 for another schedule.

    As `StableDiffusion3Pipeline` of diffusers has it: https://arxiv.org/abs/2403.03206, section 5.3.2. Raises
    `SourceError` if the config has no line through its two points.

    Args:
        config: Of the scheduler.
        tokens: Patches of a picture, each of which is one to the network; a number, or one of a graph, as it returns.
        steps: Steps from noise to a picture.
        own: The family's, where its pipelines leave the config's numbers aside.
        xp: Array interface of the numbers.
    """
    if not config.get("use_dynamic_shifting"):
        return 0.0
    if own is not None:
        return own(xp, tokens, steps)
    first, last = config["base_image_seq_len"], config["max_image_seq_len"]
    if first == last:
        raise SourceError(
            f"scheduler/scheduler_config.json: base_image_seq_len and max_image_seq_len are both {first}, so nothing "
            "says how the shift grows with the picture; get the file again"
        )
    slope = (config["max_shift"] - config["base_shift"]) / (last - first)
    return config["base_shift"] + slope * (tokens - first)
