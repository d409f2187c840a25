"""A1111's samplers and schedule types, by all names that programs send."""

from __future__ import annotations

from typing import Final

from olivelike.errors import UsageError
from olivelike.runtime.schedulers.scheduler_names import SAMPLERS, draws_for, find_scheduler, written_schedule
from olivelike.serve.api.a1111_fields import Situation
from olivelike.serve.api.refusals import refused

SAMPLER_ALIASES: Final = {
    "DPM++ 2M": ["k_dpmpp_2m"],
    "DPM++ SDE": ["k_dpmpp_sde"],
    "DPM++ 2M SDE": ["k_dpmpp_2m_sde"],
    "DPM++ 2M SDE Heun": ["k_dpmpp_2m_sde_heun"],
    "DPM++ 2S a": ["k_dpmpp_2s_a"],
    "DPM++ 3M SDE": ["k_dpmpp_3m_sde"],
    "Euler a": ["k_euler_a", "k_euler_ancestral"],
    "Euler": ["k_euler"],
    "LMS": ["k_lms"],
    "Heun": ["k_heun"],
    "DPM2": ["k_dpm_2"],
    "DPM2 a": ["k_dpm_2_a"],
    "Restart": ["restart"],
    "DDIM": ["ddim"],
    "PLMS": ["plms"],
    "UniPC": ["unipc"],
    "LCM": ["k_lcm"],
    "DEIS": ["deis"],
    "DPM++ 2S": ["dpmpp_2s"],
    "SA Solver": ["sa_solver"],
    "DDPM": ["ddpm"],
    "TCD": ["tcd"],
}
"""Further names of samplers, A1111's where it has them."""
_SCHEDULES: Final = (
    "Automatic",
    "Uniform",
    "Karras",
    "Exponential",
    "SGM Uniform",
    "Simple",
    "Normal",
    "DDIM",
    "Beta",
    "KL Optimal",
    "Align Your Steps",
    "Polyexponential",
    "Turbo",
)
SCHEDULE_NAMES: Final = {label.lower().replace(" ", "_"): label for label in _SCHEDULES}
"""Schedule types by the names that programs send; people read the labels."""
_ANCESTRAL: Final = ("EulerAncestralDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "DPM++ 2S a")


def scheduler_of(sampler: str | None, schedule: str | None, prefix: str = "") -> str | None:
    """Return our name for a sampler and a schedule type; `None` for the folder's own.

    Raises `RequestRefusedError` for one that is not here, by the name of its field: `prefix` is `hr_` of a second pass.
    """
    if not sampler:
        return None
    named = next((name for name, aliases in SAMPLER_ALIASES.items() if sampler in aliases), sampler)
    try:
        find_scheduler(named)
    except UsageError as error:
        raise refused(f"{prefix}sampler_name: {error}") from None
    if named not in SAMPLER_ALIASES:  # It ends in its schedule, as before A1111 1.9, or is a class of diffusers.
        return named
    asked = SCHEDULE_NAMES.get((schedule or "automatic").lower(), schedule)
    label = written_schedule(named, asked)
    whole = f"{named} {label}" if label else named
    try:
        find_scheduler(whole)
    except UsageError:
        known = ", ".join(SCHEDULE_NAMES[name] for name in schedules_for(named))
        raise refused(f"{prefix}scheduler: {named} is not drawn with {asked!r} here, but with {known}") from None
    return whole


def situations_of(scheduler: str | None) -> set[Situation]:
    """Return what holds of a scheduler by our name; of the folder's own, nothing is known."""
    if scheduler is None:
        return set()
    choice = find_scheduler(scheduler)
    options = dict(choice.options)
    found: dict[Situation, bool] = {
        "ancestral": choice.class_name in _ANCESTRAL,
        "noise": choice.class_name in (*_ANCESTRAL, "DPMSolverSDEScheduler")
        or str(options.get("algorithm_type")).startswith("sde"),
        "DDIM": choice.class_name.startswith("DDIM"),
        "UniPC": choice.class_name == dict(SAMPLERS)["UniPC"][0],
        "Beta": options.get("use_beta_sigmas") is True,
    }
    return {name for name, holds in found.items() if holds}


def schedules_for(sampler: str, made_for: str | None = None) -> list[str]:
    """Return the schedule types, as programs name them, that a sampler is drawn with for a folder's own class."""
    named = {name: written_schedule(sampler, label) for name, label in SCHEDULE_NAMES.items()}
    return [name for name, kind in named.items() if draws_for(f"{sampler} {kind}" if kind else sampler, made_for)]
