"""Names of samplers: diffusers' classes, A1111's names with the settings that they mean, and names that can't be had.

A1111's names and schedule types are those of its `modules/sd_samplers_kdiffusion.py` and `modules/sd_schedulers.py`;
what they are in diffusers is the table in its guide "Schedulers"
(https://huggingface.co/docs/diffusers/api/schedulers/overview). `DPM++ SDE` is the class ported from k-diffusion. A
sampler that diffusers has no class for is its own class here, by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.model.scheduler_settings import LEAVES_OUT, SIGMAS, TYPE

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

_GOES_APART: Final = "goes on with what the negative prompt alone foretells, and guidance makes one sum of both here"
_OTHER_LOOPS: Final[Mapping[str, tuple[str, str]]] = {
    "DPM adaptive": ("finds its steps while it draws, and a schedule has them before the first one here", "DPM++ 2S"),
    "DPM fast": ("is of the DPM solvers that DPM++ has followed", "DPM++ 2S"),
    "DDIM CFG++": (_GOES_APART, "DDIM"),
    "Euler CFG++": (_GOES_APART, "Euler"),
    "Euler a CFG++": (_GOES_APART, "Euler a"),
}
"""Samplers of A1111 and its kin that no table of numbers is → why, and the nearest that is one."""


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
OF_OURS: Final = frozenset({"DPM++ 2S a", "Restart"})
"""Samplers that diffusers has no class for."""
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


_SINGLESTEP: Final = (("algorithm_type", "dpmsolver++"), ("solver_order", 2), ("solver_type", "midpoint"))

SAMPLERS: Mapping[str, tuple[str, Options]] = {
    "DPM++ 2M": _multistep("dpmsolver++", 2, "midpoint"),
    "DPM++ SDE": ("DPMSolverSDEScheduler", ()),
    "DPM++ 2M SDE": _multistep("sde-dpmsolver++", 2, "midpoint"),
    "DPM++ 2M SDE Heun": _multistep("sde-dpmsolver++", 2, "heun"),
    "DPM++ 2S a": ("DPM++ 2S a", ()),
    "DPM++ 3M SDE": _multistep("sde-dpmsolver++", 3, "midpoint"),
    "Euler a": ("EulerAncestralDiscreteScheduler", ()),
    "Euler": ("EulerDiscreteScheduler", ()),
    "LMS": ("LMSDiscreteScheduler", ()),
    "Heun": ("HeunDiscreteScheduler", ()),
    "DPM2": ("KDPM2DiscreteScheduler", ()),
    "DPM2 a": ("KDPM2AncestralDiscreteScheduler", ()),
    "Restart": ("Restart", ()),
    "DDIM": ("DDIMScheduler", ()),
    "PLMS": ("PNDMScheduler", (("skip_prk_steps", True),)),
    "UniPC": ("UniPCMultistepScheduler", ()),
    "LCM": ("LCMScheduler", ()),
    "DEIS": ("DEISMultistepScheduler", ()),
    "DPM++ 2S": ("DPMSolverSinglestepScheduler", _SINGLESTEP),
    "SA Solver": ("SASolverScheduler", ()),
    "DDPM": ("DDPMScheduler", ()),
    "TCD": ("TCDScheduler", ()),
}
"""Name in A1111, Forge or other programs → class, and the settings that tell it from others of the class."""


def _sigmas(on: str | None) -> Options:
    return tuple((name, name == on) for name in SIGMAS)


SCHEDULES: Mapping[str, Options] = {
    "Karras": _sigmas("use_karras_sigmas"),
    "Exponential": _sigmas("use_exponential_sigmas"),
    "Beta": _sigmas("use_beta_sigmas"),
    "SGM Uniform": (*_sigmas(None), ("timestep_spacing", "trailing")),
    **{kind: (*_sigmas(None), (TYPE, kind)) for kind in ("Normal", "Simple", "DDIM", "KL Optimal", "Align Your Steps")},
}
"""A1111's schedule type → settings; for the classes that space noise levels."""
_UNFIT: Final = frozenset({("SASolverScheduler", "Beta")})
"""Classes whose noise a schedule type leaves too few steps to take away, so that other pictures come of it."""
_KDPM2: Final = ("KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler")
"""Classes that, with DPM++ 3M SDE, go to no noise from the level before the least: `discard_next_to_last_sigma`."""
SPACED: Final = _WITH_SIGMAS | BENT_HERE | OF_OURS
"""Classes that do."""

_ALL_ALONG: Mapping[str, Options] = {
    "DDIMScheduler": (("timestep_spacing", "trailing"),),
    **dict.fromkeys(("LCMScheduler", "TCDScheduler"), (("original_inference_steps", 1000),)),
}
"""Classes without other schedule types → settings for `SGM Uniform`: steps from the last timestep on, evenly."""

DEFAULT_SCHEDULES: Mapping[str, str] = {
    **dict.fromkeys(("DPM++ 2M", "DPM++ SDE", "DPM++ 2S a", "DPM2", "DPM2 a", "Restart"), "Karras"),
    **dict.fromkeys(("DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM++ 3M SDE"), "Exponential"),
}
"""Schedules that A1111, since 1.9, takes for the schedule type `Automatic`; for others the plain one."""

UNIFORM: Final = "Uniform"
"""The plain schedule type: noise levels as the folder's settings and the class of diffusers space them."""
_AS_UNIFORM: Final = ("Normal", "Simple", "DDIM")
"""Schedule types that classes which space no noise levels take for it, as A1111 does."""
_FLOW_IS: Final = frozenset({(TYPE, "Normal"), (TYPE, "Simple")})
"""What a flow's own schedule is, to ComfyUI and Forge."""
_SAME_TYPES: Final = {"Polyexponential": "Exponential", "Turbo": "SGM Uniform", "ddim_uniform": "DDIM"}
"""Schedule type of A1111, Forge or ComfyUI → the same under its other name; A1111's exponent of the first is 1."""


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
            raise UsageError(f"sampler {asked!r} {why}")
        if (part := _wrong_part(name, schedule)) is not None:
            raise UsageError(f"sampler {asked!r}: {part}")
        near = did_you_mean(asked, _spellings())
        hint = near if near.startswith("did you mean") else f"samplers: {', '.join(SAMPLERS)}"
        raise UsageError(f"there is no sampler {asked!r}; {hint}")
    return found


def listed_name(name: str) -> str:
    """Return a name as lists of samplers have it. Raises as `find_scheduler`."""
    choice = find_scheduler(name)
    return next((listed for listed, one in _spellings().items() if one == choice), name)


def find_for(name: str, made_for: str | None) -> SchedulerChoice:
    """Return what a name stands for where a folder has a class of its own; with one of `FLOW`, Euler is that class.

    Raises `UsageError` for what `find_scheduler` refuses, and for a sampler of noise where the folder's is of flow.
    """
    if made_for not in FLOW:
        return find_scheduler(name)
    if _plain(name) in {_plain(made_for), _plain(made_for.removesuffix(_SUFFIX))}:
        return SchedulerChoice(made_for)
    choice = find_scheduler(name)
    bent = [(key, value) for key, value in choice.options if (key, value) not in _FLOW_IS]
    if choice.class_name != _EULER or any(value and key not in SIGMAS for key, value in bent):
        raise UsageError(
            f"sampler {name!r} is for networks that predict noise, and this one was trained for flow matching; take "
            "Euler, alone or with Karras, Exponential or Beta"
        )
    return SchedulerChoice(made_for, tuple(bent))


def _known(plain: str) -> SchedulerChoice | None:
    theirs = _KDIFFUSION.sub(lambda match: _KDIFFUSION_NAMES[match[1]], plain)
    for spelling in (plain, theirs, theirs.removeprefix("k")):
        if found := _CHOICES.get(spelling):
            return found
        for ending, kind in _TYPES.items():
            if spelling.endswith(ending) and (alone := _CHOICES.get(spelling.removesuffix(ending))):
                return _typed(alone, kind)
    return None


def _typed(choice: SchedulerChoice, kind: str) -> SchedulerChoice | None:
    """Return a sampler with a schedule type; `None` if it has none such."""
    if _is_plain(choice.class_name, kind):
        return choice
    more = SCHEDULES[kind] if choice.class_name in SPACED and (choice.class_name, kind) not in _UNFIT else ()
    if (TYPE, kind) in more and (choice.class_name in _KDPM2 or ("solver_order", 3) in choice.options):
        more = (*more, (LEAVES_OUT, True))
    if kind == "SGM Uniform":
        more = more or _ALL_ALONG.get(choice.class_name, ())
    return replace(choice, options=tuple({**dict(choice.options), **dict(more)}.items())) if more else None


def _is_plain(class_name: str, kind: str) -> bool:
    return kind == UNIFORM or (kind in _AS_UNIFORM and class_name not in SPACED)


def _wrong_part(name: str, schedule: str | None) -> str | None:
    """Return what of a sampler with a schedule type can't be had, where the other one can; `None` if it is neither."""
    if schedule is not None and _known(_plain(name)) and _plain(schedule) not in _TYPES:
        known = did_you_mean(schedule, [*SCHEDULES, UNIFORM], "schedule types")
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
    kind, choice = _TYPES.get(_plain(schedule), schedule), _known(_plain(sampler))
    return None if _is_plain(choice.class_name if choice else "", kind) else kind


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
    """Return the names that `find_for` takes with a folder's own class, A1111's first; for a flow, each thing once."""
    known = _spellings().items()
    others = {name for name, choice in known if made_for in FLOW and not _FLOW_IS.isdisjoint(choice.options)}
    return tuple(name for name, _ in known if name not in others and draws_for(name, made_for))


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
    drawn = frozenset(scheduler_names(made_for))
    return tuple(_entry(name, made_for, drawn) for name in SAMPLERS if name in drawn)


def _entry(name: str, made_for: str | None, drawn: Collection[str]) -> SamplerEntry:
    kinds = tuple(kind for kind in SCHEDULES if f"{name} {kind}" in drawn)
    same = find_scheduler(name)
    aliases = tuple(one for one, choice in _spellings().items() if choice == same and one != name)
    if made_for in FLOW and made_for is not None:
        return SamplerEntry(name, (UNIFORM, *kinds), UNIFORM, (*aliases, made_for, made_for.removesuffix(_SUFFIX)))
    return SamplerEntry(name, (UNIFORM, *kinds), DEFAULT_SCHEDULES.get(name, UNIFORM), aliases)


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
    if kind := settings.get(TYPE):
        return sampler, str(kind)
    if class_name in SPACED:
        for schedule, options in SCHEDULES.items():
            if all(bool(settings.get(k)) == v if k in SIGMAS else settings.get(k) == v for k, v in options):
                return sampler, schedule
    all_along = _ALL_ALONG.get(class_name)
    return sampler, "SGM Uniform" if all_along and all(settings.get(k) == v for k, v in all_along) else None


@cache
def _spellings() -> Mapping[str, SchedulerChoice]:
    """Every name, as people write it."""
    found: dict[str, SchedulerChoice] = {}
    for sampler, (class_name, options) in SAMPLERS.items():
        plain = _sigmas(None) if class_name in SPACED - BENT_HERE else ()
        found[sampler] = SchedulerChoice(class_name, options + plain)
        typed = {kind: None if _is_plain(class_name, kind) else _typed(found[sampler], kind) for kind in SCHEDULES}
        found |= {f"{sampler} {kind}": choice for kind, choice in typed.items() if choice}
    known = {_plain(name): choice for name, choice in found.items()}
    for class_name in CLASSES:
        for name in (class_name.removesuffix(_SUFFIX), class_name):
            found.setdefault(name, known.get(_plain(name), SchedulerChoice(class_name, ())))
    return found


def _why_not(plain: str) -> str | None:
    by_start = [why for start, why in _REFUSED.items() if plain.startswith(start)]
    by_part = [f"{why}; {_ANOTHER}" for part, why in _KINDS.items() if part.casefold() in plain]
    return next(iter(by_start + by_part), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold().replace("dpmpp", "dpm++")


_KDIFFUSION_NAMES = {"eulerancestral": "eulera", "dpm2ancestral": "dpm2a", "dpm++2sancestral": "dpm++2sa"}
_KDIFFUSION = re.compile(f"^k?({'|'.join(map(re.escape, _KDIFFUSION_NAMES))})")
"""Names of k-diffusion's functions, as ComfyUI and what is built on it have them, that are not A1111's run together."""
_CHOICES = {_plain(spelling): choice for spelling, choice in _spellings().items()}
_TYPES = {
    _plain(kind): _SAME_TYPES.get(kind, kind)
    for kind in sorted((*SCHEDULES, UNIFORM, *_SAME_TYPES), key=len, reverse=True)
}
"""Schedule types by endings of names, the longest first."""
_ANOTHER: Final = "take another one, such as Euler a or DPM++ 2M Karras"
_REFUSED = {
    **dict.fromkeys(map(_plain, ("EDMEuler", "EDMDPMSolver")), f"{_EDM_BY_NAME}; {_ANOTHER}"),
    **{_plain(name): f"{why}; the nearest is {nearest}" for name, (why, nearest) in _OTHER_LOOPS.items()},
}
"""Beginnings of names that people ask for, and why they can't be had."""
