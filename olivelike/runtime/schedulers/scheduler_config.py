"""What a `scheduler_config.json` may say, checked before diffusers is imported: its classes check little of it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Rule = tuple[Callable[[Any], bool], str]

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
    "clip_sample_range": _FINITE,
    "sample_max_value": _FINITE,
    "dynamic_thresholding_ratio": _FINITE,
    "timestep_scaling": _FINITE,
    **dict.fromkeys(
        (
            "clip_sample", "thresholding", "set_alpha_to_one", "rescale_betas_zero_snr", "skip_prk_steps",
            "lower_order_final", "euler_at_final", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas",
        ),
        _SWITCH,
    ),
}  # fmt: skip


def check_scheduler_config(config: Mapping[str, Any]) -> None:
    """Check the settings that schedulers of diffusers share.

    Raises:
        SourceError: for the first one that no scheduler could work with.
    """
    for name, (fits, what) in _RULES.items():
        if name in config and not fits(config[name]):
            raise SourceError(
                f"scheduler/scheduler_config.json: {name} is {_shown(config[name])}, but must be {what}; repair the "
                "file, or make the folder again"
            )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
