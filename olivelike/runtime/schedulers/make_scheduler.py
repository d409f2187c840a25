"""Diffusers' schedulers for a pipeline's folder: made from its config, once that is checked, by the user's name."""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from olivelike._light_diffusers import light_diffusers
from olivelike.errors import MissingError, SourceError
from olivelike.model.scheduler_settings import taken_over
from olivelike.runtime.schedulers.flow_matching import for_the_loop
from olivelike.runtime.schedulers.scheduler_names import (
    CLASSES,
    EDM,
    FLOW,
    SchedulerChoice,
    find_for,
    packages_for,
    why_not_own,
)

if TYPE_CHECKING:
    import torch

    from olivelike._untrusted import Json, JsonView

    Rule = tuple[Callable[[Any], bool], str]

_SINGLE_STEP = "DPMSolverSinglestepScheduler"


class Scheduler(Protocol):
    """The part of a scheduler of diffusers that a denoising loop uses."""

    timesteps: torch.Tensor
    """One for each call of the network, once `set_timesteps` was called."""
    config: JsonView
    order: int
    """Calls of the network that make up a step."""

    @property
    def init_noise_sigma(self) -> float | torch.Tensor:
        """Factor of the initial noise; final once `set_timesteps` was called."""

    def set_timesteps(self, num_inference_steps: int, device: str | None = None, **more: float) -> None:
        """Choose the timesteps; `more` is what `shift_by_size` returns."""

    def scale_model_input(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Return what the network takes for these latents."""

    def step(self, model_output: torch.Tensor, timestep: torch.Tensor, sample: torch.Tensor, **more: Any) -> Any:
        """Return the next latents, as `prev_sample`."""

    def add_noise(self, original: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Return latents with the noise of each timestep."""


def check_scheduler(
    name: str | None, config: JsonView, *, flow: bool = True
) -> tuple[SchedulerChoice | None, str | None]:
    """Refuse what can be refused before diffusers is imported; return the choice, and the class of the config.

    Raises `UsageError` if there is no scheduler of that name, `MissingError` if a package that it needs is not
    installed, and `SourceError` if the config is not one of a scheduler that diffusers has, or of networks of another
    kind; without `flow`, of flow matching.
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
    for package in choice.needs if choice else packages_for(made_for, config):
        if find_spec(package) is None:
            raise MissingError(
                f"scheduler {name or made_for!r} needs {package}; run `pip install {package}`, or choose another"
            )
    return choice, made_for


def make_scheduler(name: str | None, config: JsonView, *, flow: bool = True) -> Scheduler:
    """Return a new scheduler for a pipeline.

    How the network was trained is taken from the config whatever the class. Another class takes its own defaults for
    the rest, as diffusers' `from_config` does between schedulers of a published pipeline. Raises what `check_scheduler`
    raises, and `SourceError` if diffusers has no such scheduler, or makes none of the config. `name` is what the user
    asked for; `None` is the folder's own scheduler. Without `flow`, the network is not of flow matching.
    """
    choice, made_for = check_scheduler(name, config, flow=flow)
    cls = _scheduler_class(choice.class_name if choice else made_for)
    cls = for_the_loop(cls) if cls.__name__ in FLOW else cls
    parameters = _parameters(cls)
    settings = taken_over(cls.__name__, config, parameters, {} if cls.__name__ == made_for else _defaults(made_for))
    settings |= dict(choice.options) if choice else {}
    if cls.__name__ == _SINGLE_STEP and settings.get("final_sigmas_type", "zero") == "zero":
        # The class sets it for itself, with a warning at each run.
        settings["lower_order_final"] = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            made: Scheduler = cls(**{k: v for k, v in settings.items() if k in parameters})
    except (ValueError, TypeError, NotImplementedError) as error:
        raise SourceError(
            f"scheduler_config.json makes no {cls.__name__}: {error}; repair the file, or make the folder again"
        ) from error
    return made


def taken_in_steps(scheduler: Scheduler) -> set[str]:
    """Return what a scheduler's `step` takes of `generator` (one per picture in a list will do) and `eta`."""
    return {"generator", "eta"} & inspect.signature(scheduler.step).parameters.keys()


def seed_noise(scheduler: Any, seeds: Sequence[int], latents: torch.Tensor) -> None:
    """Let a scheduler whose noise comes from seeds draw that of each picture on the CPU, whatever it computes on.

    Others draw from generators, and stay as they are.

    Args:
        scheduler: its timesteps are set, and no step is done.
        latents: of shape (pictures, channels, height, width).
    """
    if not hasattr(scheduler, "noise_sampler"):
        return
    import torch

    from olivelike.runtime.pipeline.noise import BrownianPath

    sigmas = scheduler.sigmas.cpu()
    span = sigmas[sigmas > 0].min().item(), sigmas.max().item()
    paths = [BrownianPath(seed, *span, tuple(latents.shape[1:])) for seed in seeds]

    def draw(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        ways = [torch.from_numpy(path.between(low.item(), high.item())) for path in paths]
        # As `BrownianTreeNoiseSampler` of diffusers, whose times fall.
        return (-torch.stack(ways) / (low - high).abs().sqrt().cpu()).to(latents.device)

    scheduler.noise_sampler = draw


def _scheduler_class(name: str | None) -> Any:
    with light_diffusers():
        import diffusers

        cls = getattr(diffusers, name, None) if name is not None else None
    if cls is None or not hasattr(cls, "from_config") or not hasattr(cls, "step"):
        raise SourceError(
            f"scheduler_config.json names the class {name!r}, which is no scheduler of diffusers "
            f"{diffusers.__version__}; name another scheduler, or make the folder again"
        )
    return cls


@lru_cache(maxsize=64)
def _parameters(cls: type[Any]) -> Json:
    """Return the settings of a class, with their defaults."""
    return {key: parameter.default for key, parameter in inspect.signature(cls.__init__).parameters.items()}


def _defaults(class_name: str | None) -> Json:
    """Return the settings that the folder's class has by itself."""
    with light_diffusers():
        import diffusers

        cls = getattr(diffusers, class_name, None) if class_name is not None else None
    if cls is None:
        return {}
    return _parameters(cls)


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
