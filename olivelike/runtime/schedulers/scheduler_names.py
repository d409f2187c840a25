"""Names of samplers: diffusers' classes, A1111's names with the settings that they mean, and names that can't be had.

A1111's names and schedule types are those of its `modules/sd_samplers_kdiffusion.py` and `modules/sd_schedulers.py`;
what they are in diffusers is the table in its guide "Schedulers"
(https://huggingface.co/docs/diffusers/api/schedulers/overview). `DPM++ SDE` is the class ported from k-diffusion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.model.scheduler_settings import SIGMAS

_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("FlowMatch", "FlowMap", "LTXEulerAncestralRF", "SCM", "Piflow"),
        "is for networks of flow matching, such as those of SD 3 and Flux",
    ),
    **dict.fromkeys(("Helios", "CogVideoX"), "is for networks of video"),
    "Inverse": "goes from a picture back to noise",
    **dict.fromkeys(("IPNDM", "CosineDPMSolver"), "is for networks of sound, which count time from 0 to 1"),
    "CMStochastic": "is for consistency models (LCM is for latent ones)",
    "ConsistencyDecoder": "is for a decoder of pictures",
    "RePaint": "paints inside masks in a way of its own",
    "UnCLIP": "is for networks of unCLIP",
    "Wuerstchen": "is for networks of Würstchen",
    **dict.fromkeys(
        ("Amused", "VQDiffusion", "BlockRefinement", "EntropyBound", "DiscreteDDIM"),
        "is for networks that predict tokens",
    ),
    **dict.fromkeys(("KarrasVe", "ScoreSde"), "is for networks of score-based models"),
}
"""Part of the name of a class of diffusers → why it can't draw."""

EDM: Final = frozenset({"EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"})
"""They draw for networks that were trained for them, whose folders come with one of them."""

FLOW: Final = frozenset({"FlowMatchEulerDiscreteScheduler"})
"""They draw for networks of flow matching, whose folders come with one of them; to people they are Euler."""

_EDM_BY_NAME: Final = "is for networks trained as EDM, such as Playground v2.5, whose own folders name it"

_NOT_IN_DIFFUSERS: Final = ("DPM++ 2S a", "DPM fast", "DPM adaptive", "Restart", "DDIM CFG++")
"""Samplers of A1111 that diffusers has no class for."""


def why_not_own(class_name: str) -> str:
    """Return why a folder's own class can't draw, of those that can't."""
    otherwise = "is not known to draw with networks such as these"
    return next((why for part, why in _KINDS.items() if part in class_name), otherwise)


_SUFFIX = "Scheduler"
_EULER: Final = "EulerDiscreteScheduler"

_WITH_SIGMAS = frozenset(
    {
        "DEISMultistepScheduler", "DPMSolverMultistepScheduler", "DPMSolverSDEScheduler",
        "DPMSolverSinglestepScheduler", "EulerDiscreteScheduler", "HeunDiscreteScheduler",
        "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler", "LMSDiscreteScheduler", "SASolverScheduler",
        "UniPCMultistepScheduler",
    }
)  # fmt: skip
BENT_HERE: Final = frozenset({"EulerAncestralDiscreteScheduler"})
"""Classes that have no settings of `SIGMAS`, and are drawn with other schedule types all the same, asked by name."""
CLASSES = (
    *sorted(_WITH_SIGMAS), "DDIMParallelScheduler", "DDIMScheduler", "DDPMParallelScheduler", "DDPMScheduler",
    "EulerAncestralDiscreteScheduler", "LCMScheduler", "PNDMScheduler", "TCDScheduler",
)  # fmt: skip
"""Classes that sample networks which predict noise or v at discrete timesteps."""

Options = tuple[tuple[str, str | int | bool], ...]


def _multistep(algorithm: str, order: int, solver: str) -> tuple[str, Options]:
    return "DPMSolverMultistepScheduler", (
        ("algorithm_type", algorithm),
        ("solver_order", order),
        ("solver_type", solver),
    )


SAMPLERS: Mapping[str, tuple[str, Options]] = {
    "DPM++ 2M": _multistep("dpmsolver++", 2, "midpoint"),
    "DPM++ SDE": ("DPMSolverSDEScheduler", ()),
    "DPM++ 2M SDE": _multistep("sde-dpmsolver++", 2, "midpoint"),
    "DPM++ 2M SDE Heun": _multistep("sde-dpmsolver++", 2, "heun"),
    "DPM++ 3M SDE": _multistep("sde-dpmsolver++", 3, "midpoint"),
    "Euler a": ("EulerAncestralDiscreteScheduler", ()),
    "Euler": ("EulerDiscreteScheduler", ()),
    "LMS": ("LMSDiscreteScheduler", ()),
    "Heun": ("HeunDiscreteScheduler", ()),
    "DPM2": ("KDPM2DiscreteScheduler", ()),
    "DPM2 a": ("KDPM2AncestralDiscreteScheduler", ()),
    "DDIM": ("DDIMScheduler", ()),
    "PLMS": ("PNDMScheduler", (("skip_prk_steps", True),)),
    "UniPC": ("UniPCMultistepScheduler", ()),
    "LCM": ("LCMScheduler", ()),
}
"""A1111's name → class, and the settings that tell it from others of the class."""


def _sigmas(on: str | None) -> Options:
    return tuple((name, name == on) for name in SIGMAS)


SCHEDULES: Mapping[str, Options] = {
    "Karras": _sigmas("use_karras_sigmas"),
    "Exponential": _sigmas("use_exponential_sigmas"),
    "Beta": _sigmas("use_beta_sigmas"),
    "SGM Uniform": (*_sigmas(None), ("timestep_spacing", "trailing")),
}
"""A1111's schedule type → settings; for the classes that have them."""

_ALL_ALONG: Mapping[str, Options] = {
    "DDIMScheduler": (("timestep_spacing", "trailing"),),
    **dict.fromkeys(("LCMScheduler", "TCDScheduler"), (("original_inference_steps", 1000),)),
}
"""Classes without other schedule types → settings for `SGM Uniform`: steps from the last timestep on, evenly."""

DEFAULT_SCHEDULES: Mapping[str, str] = {
    **dict.fromkeys(("DPM++ 2M", "DPM++ SDE", "DPM2", "DPM2 a"), "Karras"),
    **dict.fromkeys(("DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM++ 3M SDE"), "Exponential"),
}
"""Schedules that A1111, since 1.9, takes for the schedule type `Automatic`; for others the plain one."""

_FURTHER: Final = ("DEIS", "DPMSolverSinglestep", "SASolver", "DDPM", "TCD")
"""Samplers of diffusers that A1111 has none of; its classes for parallel sampling give what the others do."""

PLAIN_SCHEDULES = ("Uniform", "Normal", "Simple")
"""A1111's schedule types that space noise levels as a class of diffusers does by itself."""
_UNBENT: Final = PLAIN_SCHEDULES[0]

_POLYEXPONENTIAL: Final = "Polyexponential"
"""A1111's schedule type that is `Exponential` with the exponent that it has there, 1."""

_OTHER_SCHEDULES = ("Align Your Steps", "KL Optimal")
"""A1111's schedule types that no class of diffusers has."""


@dataclass(frozen=True)
class SchedulerChoice:
    """A scheduler that was asked for by name."""

    class_name: str
    """Name of its class in diffusers."""
    options: Options = ()
    """Settings that the name fixes; the rest comes from the folder."""


def find_scheduler(name: str, schedule: str | None = None) -> SchedulerChoice:
    """Return what a name stands for; case, spaces, `_` and `-` do not matter.

    Raises `UsageError` if there is no such name; the message has the nearest ones, or why it can't be had.

    Args:
        name: a class of diffusers with or without `Scheduler`, or a sampler of A1111, which may end in a schedule type:
            `DPM++ 2M Karras`. A sampler alone has the plain schedule, whatever A1111's default is.
        schedule: A1111's schedule type, where it is written apart.
    """
    asked = name if schedule is None else f"{name} {schedule}"
    found = _known(_plain(asked))
    if found is None:
        if why := _why_not(_plain(asked)):
            raise UsageError(f"scheduler {asked!r} {why}; take another one, such as Euler a or DPM++ 2M Karras")
        for other in _OTHER_SCHEDULES:
            if _plain(asked).endswith(_plain(other)):
                raise UsageError(
                    f"scheduler {asked!r}: diffusers has no schedule {other}; take one of {', '.join(SCHEDULES)}, or "
                    "Uniform"
                )
        if (part := _wrong_part(name, schedule)) is not None:
            raise UsageError(f"scheduler {asked!r}: {part}")
        near = did_you_mean(asked, _spellings())
        hint = near if near.startswith("did you mean") else f"samplers: {', '.join(SAMPLERS)}"
        raise UsageError(f"there is no sampler {asked!r}; {hint}")
    return found


def find_for(name: str, made_for: str | None) -> SchedulerChoice:
    """Return what a name stands for where a folder has a class of its own; with one of `FLOW`, Euler is that class.

    Raises `UsageError` for what `find_scheduler` refuses, and for a sampler of noise where the folder's is of flow.
    """
    if made_for not in FLOW:
        return find_scheduler(name)
    if _plain(name) in {_plain(made_for), _plain(made_for.removesuffix(_SUFFIX))}:
        return SchedulerChoice(made_for)
    choice = find_scheduler(name)
    if choice.class_name != _EULER or any(value and key not in SIGMAS for key, value in choice.options):
        raise UsageError(
            f"scheduler {name!r} is for networks that predict noise, and this one was trained for flow matching; take "
            "Euler, alone or with Karras, Exponential or Beta"
        )
    return replace(choice, class_name=made_for)


def _known(plain: str) -> SchedulerChoice | None:
    plain = re.sub(f"{_plain(_POLYEXPONENTIAL)}$", "exponential", plain)
    theirs = _KDIFFUSION.sub(lambda match: _KDIFFUSION_NAMES[match[1]], plain)
    for spelling in (plain, theirs, theirs.removeprefix("k")):
        if found := _CHOICES.get(spelling) or _CHOICES.get(_PLAIN_TYPE.sub("", spelling)):
            return found
    return None


def _wrong_part(name: str, schedule: str | None) -> str | None:
    """Return what of a sampler with a schedule type can't be had, where the other one can; `None` if it is neither."""
    if schedule is not None and _known(_plain(name)) and _plain(schedule) not in map(_plain, SCHEDULES):
        known = did_you_mean(schedule, [*SCHEDULES, *PLAIN_SCHEDULES], "schedule types")
        return f"there is no schedule type {schedule!r}; {known}"
    whole = _plain(name if schedule is None else f"{name} {schedule}")
    for kind in SCHEDULES:
        sampler = whole.removesuffix(_plain(kind))
        if sampler != whole and _known(sampler):
            spelled = next((one for one in _spellings() if _plain(one) == sampler), name)
            return (
                f"{spelled} has no schedule type {kind} here; take {spelled!r}, or {kind} with another sampler, such "
                f"as 'DPM++ 2M {kind}'"
            )
    return None


def written_schedule(sampler: str, schedule: str | None) -> str | None:
    """Return the schedule type that a text of A1111 means; `None` for the plain one.

    `schedule` is the type that it states; `None` and `Automatic` leave it to A1111.
    """
    if schedule is None or _plain(schedule) == "automatic":
        return DEFAULT_SCHEDULES.get(sampler)
    if _plain(schedule) == _plain(_POLYEXPONENTIAL):
        return "Exponential"
    return None if _PLAIN_TYPE.fullmatch(_plain(schedule)) else schedule


def sampler_alone(name: str) -> tuple[str | None, str]:
    """Return the longest sampler that a name begins with, and what stands behind it; `None` and the name if none."""
    words = name.split()
    for count in range(len(words) - 1, 0, -1):
        if _known(_plain(alone := " ".join(words[:count]))):
            return alone, " ".join(words[count:])
    return None, name


def with_schedule(name: str, schedule: str) -> str:
    """Return a scheduler's name with another schedule type of A1111. Raises as `find_scheduler`."""
    choice = find_scheduler(name)
    sampler, _ = sampler_of(choice.class_name, dict(choice.options))
    kind = written_schedule(sampler, schedule)
    find_scheduler(sampler, kind)
    return f"{sampler} {kind}" if kind else sampler


def scheduler_names(made_for: str | None = None) -> tuple[str, ...]:
    """Return every name that `find_for` takes with a folder's own class, A1111's first."""
    return tuple(name for name in _spellings() if draws_for(name, made_for))


def draws_for(name: str, made_for: str | None) -> bool:
    """Tell whether a name can be asked for where a folder has a class of its own."""
    try:
        find_for(name, made_for)
    except UsageError:
        return False
    return True


@dataclass(frozen=True)
class SamplerEntry:
    """A sampler as lists of samplers and of schedule types have it: each thing once."""

    name: str
    schedules: tuple[str, ...]
    """Schedule types that it is drawn with, the plain one first."""
    automatic: str
    """The one that A1111 takes where none is chosen."""
    aliases: tuple[str, ...]
    """Other names of the sampler with its plain schedule."""


def sampler_entries(made_for: str | None = None) -> tuple[SamplerEntry, ...]:
    """Return the samplers that draw, A1111's first; `made_for` is the class that a folder comes with."""
    return tuple(filter(None, (_entry(name, made_for) for name in (*SAMPLERS, *_FURTHER))))


def _entry(name: str, made_for: str | None) -> SamplerEntry | None:
    if not draws_for(name, made_for):
        return None
    kinds = tuple(kind for kind in SCHEDULES if draws_for(f"{name} {kind}", made_for))
    same = find_scheduler(name)
    aliases = tuple(one for one, choice in _spellings().items() if choice == same and one != name)
    if made_for in FLOW and made_for is not None:
        return SamplerEntry(name, (_UNBENT, *kinds), _UNBENT, (*aliases, made_for, made_for.removesuffix(_SUFFIX)))
    return SamplerEntry(name, (_UNBENT, *kinds), DEFAULT_SCHEDULES.get(name, _UNBENT), aliases)


def sampler_of(class_name: str, settings: Mapping[str, object]) -> tuple[str, str | None]:
    """Return A1111's sampler and schedule type for a scheduler; `None` for its plain schedule.

    A class of diffusers that A1111 has no sampler for is named without `Scheduler`.
    """
    class_name = _EULER if class_name in FLOW else class_name
    names = [
        sampler
        for sampler, (cls, options) in SAMPLERS.items()
        if cls == class_name and all(settings.get(key) == value for key, value in options)
    ]
    sampler = names[0] if names else class_name.removesuffix(_SUFFIX)
    if class_name in _WITH_SIGMAS | BENT_HERE:
        for schedule, options in SCHEDULES.items():
            if all(bool(settings.get(k)) == v if k in SIGMAS else settings.get(k) == v for k, v in options):
                return sampler, schedule
    all_along = _ALL_ALONG.get(class_name)
    return sampler, "SGM Uniform" if all_along and all(settings.get(k) == v for k, v in all_along) else None


def _spellings() -> dict[str, SchedulerChoice]:
    """Every name, as people write it."""
    found: dict[str, SchedulerChoice] = {}
    for sampler, (class_name, options) in SAMPLERS.items():
        if class_name not in _WITH_SIGMAS | BENT_HERE:
            found[sampler] = SchedulerChoice(class_name, options)
            if class_name in _ALL_ALONG:
                found[f"{sampler} SGM Uniform"] = SchedulerChoice(class_name, options + _ALL_ALONG[class_name])
            continue
        found[sampler] = SchedulerChoice(class_name, options + (() if class_name in BENT_HERE else _sigmas(None)))
        for schedule, more in SCHEDULES.items():
            found[f"{sampler} {schedule}"] = SchedulerChoice(class_name, options + more)
    for class_name in CLASSES:
        found.setdefault(class_name.removesuffix(_SUFFIX), SchedulerChoice(class_name, ()))
        found[class_name] = SchedulerChoice(class_name, ())
    found["DEIS"] = found["DEISMultistep"]
    return found


def _why_not(plain: str) -> str | None:
    by_start = [why for start, why in _REFUSED.items() if plain.startswith(start)]
    by_part = [why for part, why in _KINDS.items() if part.casefold() in plain]
    return next(iter(by_start + by_part), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold().replace("dpmpp", "dpm++")


_PLAIN_TYPE = re.compile(f"({'|'.join(map(_plain, PLAIN_SCHEDULES))})$")
_KDIFFUSION_NAMES = {"eulerancestral": "eulera", "dpm2ancestral": "dpm2a"}
_KDIFFUSION = re.compile(f"^k?({'|'.join(_KDIFFUSION_NAMES)})")
"""Names of k-diffusion's functions, as ComfyUI and what is built on it have them, that are not A1111's run together."""
_CHOICES = {_plain(spelling): choice for spelling, choice in _spellings().items()}
_REFUSED = {
    **dict.fromkeys(map(_plain, ("EDMEuler", "EDMDPMSolver")), _EDM_BY_NAME),
    **dict.fromkeys(map(_plain, _NOT_IN_DIFFUSERS), "is a sampler that diffusers has no class for"),
}
"""Beginnings of names that people ask for, and why they can't be had."""
