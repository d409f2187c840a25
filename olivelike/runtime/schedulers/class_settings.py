"""Settings of diffusers' schedulers: defaults by class, what a name fixes, and which values none works with."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from olivelike._untrusted import Json, JsonView
from olivelike.errors import SourceError
from olivelike.model.scheduler_settings import LEAVES_OUT, SIGMAS, TYPE, scheduler_table, taken_over
from olivelike.runtime.schedulers.scheduler_names import (
    BENT_HERE,
    CLASSES,
    EDM,
    FLOW,
    OF_OURS,
    SchedulerChoice,
    find_for,
    sampler_entries,
    sampler_of,
    why_not_own,
)

Rule = tuple[Callable[[Any], bool], str]

_CUT: Final = {"thresholding": False, "dynamic_thresholding_ratio": 0.995, "sample_max_value": 1.0}
_EDM: Final = {
    "num_train_timesteps": 1000, "prediction_type": "epsilon", "sigma_min": 0.002, "sigma_max": 80.0,
    "sigma_data": 0.5, "sigma_schedule": "karras", "rho": 7.0, "final_sigmas_type": "zero",
}  # fmt: skip
_OF_EDM: Final[Mapping[str, JsonView]] = {
    "EDMEulerScheduler": _EDM,
    "EDMDPMSolverMultistepScheduler": {
        **_EDM, **_CUT, "algorithm_type": "dpmsolver++", "solver_type": "midpoint", "solver_order": 2,
        "lower_order_final": True, "euler_at_final": False,
    },
}  # fmt: skip
"""Defaults of classes that no output has, and the table neither."""
_LEFT_OUT: Final = {"flow_shift", "noise_sampler_seed", "shift_terminal", "time_shift_type", "use_dynamic_shifting"}
"""Settings of other classes than those of flow matching that no formula has."""


@cache
def _defaults() -> Mapping[str, JsonView]:
    """Return the settings of each class, with their defaults, as the latest known release of diffusers has them."""
    latest = {name: rows[-1]["defaults"] for name, rows in scheduler_table()["classes"].items()}
    plain = {
        name: {key: value for key, value in own.items() if key not in _LEFT_OUT}
        for name, own in latest.items()
        if name in CLASSES
    }
    ours = dict.fromkeys(OF_OURS, plain["KDPM2AncestralDiscreteScheduler"])
    return {**plain, **{name: latest[name] for name in FLOW}, **_OF_EDM, **ours}


@dataclass(frozen=True)
class SchedulerSettings:
    """A scheduler of diffusers, and all of its settings."""

    class_name: str
    settings: JsonView


def check_scheduler(
    name: str | None, config: JsonView, *, flow: bool = True
) -> tuple[SchedulerChoice | None, str | None]:
    """Refuse what can be refused by names; return the choice, and the class of the config.

    Raises `UsageError` if there is no scheduler of that name, and `SourceError` if the config is not one of a scheduler
    that draws here, or of networks of another kind; without `flow`, of flow matching.
    """
    own = config.get("_class_name")
    made_for = own if isinstance(own, str) else None
    choice = find_for(name, made_for if flow else None) if name is not None else None
    if choice is None and made_for is not None and made_for not in {*CLASSES, *EDM, *(FLOW if flow else ())}:
        raise SourceError(
            f"scheduler/scheduler_config.json names {made_for}, which {why_not_own(made_for)}; name another scheduler, "
            "such as Euler"
        )
    check_scheduler_config(config)
    return choice, made_for


def scheduler_settings(name: str | None, config: JsonView, *, flow: bool = True) -> SchedulerSettings:
    """Return the scheduler that draws for a pipeline, with its settings.

    How the network was trained is taken from the config whatever the class. Another class takes its own defaults for
    the rest, as diffusers' `from_config` does between schedulers of a published pipeline. Raises what `check_scheduler`
    raises, and `SourceError` if no scheduler comes of the config. `name` is what the user asked for; `None` is the
    folder's own scheduler. Without `flow`, the network is not of flow matching.
    """
    choice, made_for = check_scheduler(name, config, flow=flow)
    class_name = choice.class_name if choice else made_for
    if class_name is None or class_name not in _defaults():
        raise SourceError(
            f"scheduler_config.json names the class {config.get('_class_name')!r}, which is no scheduler; name another "
            "scheduler, or make the folder again"
        )
    defaults = _defaults()[class_name]
    own_defaults = {} if class_name == made_for else _defaults().get(made_for or "", {})
    settings = {**defaults, **taken_over(class_name, config, defaults, own_defaults)}
    if choice:
        bends = {TYPE, LEAVES_OUT, "timestep_spacing", *(SIGMAS if class_name in BENT_HERE else ())}
        settings |= {key: value for key, value in choice.options if key in defaults or (key in bends and value)}
    return SchedulerSettings(class_name, _with_formulas(class_name, settings))


def listed_samplers(config: JsonView) -> Json:
    """Return what a pipeline is drawn with, for lists of samplers and schedule types.

    That is what people call its `own` sampler, `None` if that can't draw, its own `class`, and the `list` of all.
    """
    made_for = config.get("_class_name")
    own = None
    with contextlib.suppress(SourceError):  # Others may draw.
        own = " ".join(filter(None, sampler_of(str(made_for), scheduler_settings(None, config).settings)))
    found = sampler_entries(made_for if isinstance(made_for, str) else None)
    return {"own": own, "class": made_for, "list": [asdict(one) for one in found]}


_MEANT: Final[Mapping[str, Mapping[str, str]]] = {
    "algorithm_type": {"deis": "dpmsolver++"},
    "solver_type": {"logrho": "midpoint", "bh1": "midpoint", "bh2": "midpoint"},
}
"""Settings of other solvers, and what DPM-Solver takes for them."""
_ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "DPMSolverMultistepScheduler": ("dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"),
    "DPMSolverSinglestepScheduler": ("dpmsolver++", "sde-dpmsolver++", "dpmsolver"),
    "EDMDPMSolverMultistepScheduler": ("dpmsolver++", "sde-dpmsolver++"),
    "SASolverScheduler": ("data_prediction", "noise_prediction"),
}
_ONLY: Final[Mapping[str, object]] = {"use_flow_sigmas": False, "tau_func": None, "solver_p": None}
"""Settings that the formulas know one value of, and no config of networks that draw here has another."""


def _with_formulas(class_name: str, settings: Json) -> JsonView:
    """Return settings that there are formulas for, or refuse them with the nearest that can be had."""

    def refuse(key: str, nearest: object, why: str = "") -> None:
        shown = json.dumps(nearest, default=str)
        raise SourceError(
            f"scheduler/scheduler_config.json: {class_name} has no formulas for {key} {_shown(settings[key])}{why}; "
            f"write {shown}, or name another scheduler, such as Euler"
        )

    for key, known in _ONLY.items():
        if key in settings and settings[key] != known and settings[key] is not None:
            refuse(key, known)
    if sum(bool(settings.get(key)) for key in SIGMAS) > 1:
        refuse(next(key for key in SIGMAS if settings.get(key)), False, " beside another schedule of noise levels")
    if class_name == "DEISMultistepScheduler":
        return settings | {"algorithm_type": "deis", "solver_type": "logrho"}
    if class_name == "UniPCMultistepScheduler":
        if not settings["predict_x0"] and settings["final_sigmas_type"] == "zero":
            refuse("final_sigmas_type", "sigma_min", " with predict_x0 false")
        return settings | ({} if settings["solver_type"] in {"bh1", "bh2"} else {"solver_type": "bh2"})
    if class_name not in _ALGORITHMS:
        return settings
    for key, meant in _MEANT.items():
        if key in settings:
            settings[key] = meant.get(settings[key], settings[key])
    if settings["algorithm_type"] not in _ALGORITHMS[class_name]:
        refuse("algorithm_type", _ALGORITHMS[class_name][0])
    if "solver_type" not in settings:
        return settings
    if settings["solver_type"] not in {"midpoint", "heun"}:
        refuse("solver_type", "midpoint")
    kind = settings["algorithm_type"]
    if not kind.endswith("++") and settings["final_sigmas_type"] == "zero":
        refuse("final_sigmas_type", "sigma_min", f" with algorithm_type {kind}")
    multistep = class_name != "DPMSolverSinglestepScheduler"
    of_edm = class_name in EDM
    if (
        multistep
        and settings["solver_order"] > 2
        and kind in {"sde-dpmsolver", *(("sde-dpmsolver++",) if of_edm else ())}
    ):
        refuse("solver_order", 2, f" with algorithm_type {kind}")
    if not multistep and settings["final_sigmas_type"] == "zero":
        settings["lower_order_final"] = True
    return settings


_OF_VARIANCE: Final = (
    "DDPMParallelScheduler",
    "DDPMScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "SASolverScheduler",
)
"""Classes that may take half of what the network predicts for a variance."""
_SHOWN: Final = 40
_MOST_TIMESTEPS: Final = 1_000_000


def _number(value: Any, above: float = -math.inf, below: float = math.inf) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and above < value < below


def _whole(least: int, most: int) -> Rule:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return fits, f"a whole number from {least} to {most}"


def _one_of(*words: str) -> Rule:
    return lambda value: value in words, f"one of {', '.join(words)}"


_SHARE: Final[Rule] = (lambda value: _number(value, 0, 1), "a number between 0 and 1")
_FINITE: Final[Rule] = (_number, "a finite number")
_POSITIVE: Final[Rule] = (lambda value: value is None or _number(value, 0), "a number above 0, or null")
_SWITCH: Final[Rule] = (lambda value: value is None or isinstance(value, bool), "true or false")

_RULES: Final[Mapping[str, Rule]] = {
    "num_train_timesteps": _whole(1, _MOST_TIMESTEPS),
    "beta_start": _SHARE,
    "beta_end": _SHARE,
    "trained_betas": (
        lambda value: value is None
        or (isinstance(value, list) and bool(value) and all(_number(beta, 0, 1) for beta in value)),
        "null, or a list of numbers between 0 and 1",
    ),
    "prediction_type": _one_of("epsilon", "v_prediction", "sample"),
    "timestep_spacing": _one_of("linspace", "leading", "trailing"),
    "timestep_type": _one_of("discrete", "continuous"),
    "interpolation_type": _one_of("linear", "log_linear"),
    "final_sigmas_type": _one_of("zero", "sigma_min"),
    "solver_order": _whole(1, 3),
    "steps_offset": _whole(0, _MOST_TIMESTEPS),
    "original_inference_steps": _whole(1, _MOST_TIMESTEPS),
    "sigma_min": _POSITIVE,
    "sigma_max": _POSITIVE,
    "shift": _POSITIVE,
    "base_shift": _FINITE,
    "max_shift": _FINITE,
    "base_image_seq_len": _whole(1, _MOST_TIMESTEPS),
    "max_image_seq_len": _whole(1, _MOST_TIMESTEPS),
    "shift_terminal": (lambda value: value is None or _number(value, 0, 1), "null, or a number between 0 and 1"),
    "time_shift_type": _one_of("exponential", "linear"),
    "clip_sample_range": _FINITE,
    "sample_max_value": _FINITE,
    "dynamic_thresholding_ratio": _FINITE,
    "timestep_scaling": _FINITE,
    "lambda_min_clipped": (lambda value: value == -math.inf or _number(value), "a number, or -Infinity"),
    **dict.fromkeys(
        (
            "clip_sample", "thresholding", "set_alpha_to_one", "rescale_betas_zero_snr", "skip_prk_steps",
            "lower_order_final", "euler_at_final", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
            "use_dynamic_shifting", "invert_sigmas", "stochastic_sampling",
        ),
        _SWITCH,
    ),
}  # fmt: skip


def check_scheduler_config(config: JsonView) -> None:
    """Check the settings that schedulers of diffusers share.

    Raises `SourceError` for the first one that no scheduler could work with.
    """
    for name, (fits, what) in _RULES.items():
        if name in config and not fits(config[name]):
            raise SourceError(
                f"scheduler/scheduler_config.json: {name} is {_shown(config[name])}, but must be {what}; repair the "
                "file, or make the folder again"
            )
    learned = config.get("variance_type")
    if config.get("_class_name") in _OF_VARIANCE and isinstance(learned, str) and learned.startswith("learned"):
        raise SourceError(
            f"scheduler/scheduler_config.json: variance_type is {_shown(learned)}, which needs a UNet that predicts a "
            "variance beside the noise, and no Stable Diffusion does; write fixed_small, or take the scheduler of the "
            "checkpoint that it belongs to"
        )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
