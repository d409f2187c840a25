"""Schedulers that can't draw with these pipelines: which, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_FLOW: Final = "is for networks of flow matching, such as those of SD 3 and Flux"
_BACK: Final = "goes from a picture back to noise"
_SOUND: Final = "is for networks of sound, which count time from 0 to 1"
_VIDEO: Final = "is for networks of video"
_TOKENS: Final = "is for networks that predict tokens"
_SCORES: Final = "is for networks of score-based models"

_KINDS: Final[Mapping[str, str]] = {
    "FlowMatch": _FLOW,
    "FlowMap": _FLOW,
    "LTXEulerAncestralRF": _FLOW,
    "SCM": _FLOW,
    "Piflow": _FLOW,
    "Helios": _VIDEO,
    "CogVideoX": _VIDEO,
    "Inverse": _BACK,
    "IPNDM": _SOUND,
    "CosineDPMSolver": _SOUND,
    "CMStochastic": "is for consistency models (LCM is for latent ones)",
    "ConsistencyDecoder": "is for a decoder of pictures",
    "RePaint": "paints inside masks in a way of its own",
    "UnCLIP": "is for networks of unCLIP",
    "Wuerstchen": "is for networks of Würstchen",
    "Amused": _TOKENS,
    "VQDiffusion": _TOKENS,
    "BlockRefinement": _TOKENS,
    "EntropyBound": _TOKENS,
    "DiscreteDDIM": _TOKENS,
    "KarrasVe": _SCORES,
    "ScoreSde": _SCORES,
}
"""Part of the name of a class of diffusers → why it can't draw."""

EDM: Final = frozenset({"EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"})
"""They draw for networks that were trained for them, whose folders come with one of them."""

_EDM_BY_NAME: Final = "is for networks trained as EDM, such as Playground v2.5, whose own folders name it"

_NOT_IN_DIFFUSERS: Final = ("DPM++ 2S a", "DPM fast", "DPM adaptive", "Restart", "DDIM CFG++")
"""Samplers of A1111 that diffusers has no class for."""


def why_not_own(class_name: str) -> str:
    """Return why a folder's own class can't draw, of those that can't."""
    otherwise = "is not known to draw with networks such as these"
    return next((why for part, why in _KINDS.items() if part in class_name), otherwise)


def why_not_by_name(plain: str, plainly: Mapping[str, str]) -> str | None:
    """Return why a name can't be had; `None` if it is unknown.

    Args:
        plain: What was asked for, without what does not matter in names.
        plainly: Spellings without what does not matter, by themselves; see `refused_names`.
    """
    for start, why in plainly.items():
        if plain.startswith(start):
            return why
    parts = ((part, why) for part, why in _KINDS.items() if part.casefold() in plain)
    return next((why for _, why in parts), None)


def refused_names() -> dict[str, str]:
    """Return names that people ask for by their beginnings, and why they can't be had."""
    none = "is a sampler that diffusers has no class for"
    return {"EDMEuler": _EDM_BY_NAME, "EDMDPMSolver": _EDM_BY_NAME, **dict.fromkeys(_NOT_IN_DIFFUSERS, none)}
