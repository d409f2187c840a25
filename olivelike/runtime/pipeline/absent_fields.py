"""Fields of a request that have no meaning for a folder: the page leaves them out, and they are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.model.guides import CONTROL_KINDS, GUIDES

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request

_GUIDANCE: Final = ("guidance_rescale", "guidance_interval", "guidance_calls")
"""Fields about guidance that runs in steps of its own."""
_PROMPT: Final = tuple(kind.name for kind in GUIDES.values() if kind.is_prompt)


def absent_fields(folder: PipelineFolder) -> tuple[str, ...]:
    """Return the fields without a meaning: those that are refused, and those that are not used, as lines say."""
    unused = [] if folder.family.prompt_syntax else ["prompt_weights"]
    if not folder.family.takes_negatives and not folder.takes_guidance:
        unused.append("guidance_scale")
    return (*refused_fields(folder), *unused, *(["fast"] if folder.is_of_flow else []))


def refused_fields(folder: PipelineFolder) -> Mapping[str, str]:
    """Return why fields are refused, as ends of sentences: what the family says, and what follows from its facts."""
    family = folder.family
    found = dict(family.refused)
    if not family.takes_negatives:
        found |= dict.fromkeys(_GUIDANCE, "there is no guidance that runs in steps of its own")
    if folder.is_of_flow:
        found["eta"] = "its scheduler draws no fresh noise"
    if not family.caches:
        found["cache_interval"] = "its denoiser has no part that steps between whole ones could do without"
    if family.guides.isdisjoint(kind.name for kind in CONTROL_KINDS):
        titles = " or ".join(kind.title for kind in CONTROL_KINDS)
        found |= dict.fromkeys(("controls", "control_guess"), f"there is no {titles} for it here")
    if family.guides.isdisjoint(_PROMPT):
        titles = " or ".join(GUIDES[name].title for name in _PROMPT)
        found |= dict.fromkeys(("ip_adapter_images", "ip_adapter_scale"), f"there is no {titles} for it here")
    if not family.most_references:
        found["references"] = "its denoiser sees no pictures beside the text"
    return found


def check_absent(request: Request, folder: PipelineFolder) -> None:
    """Raise `UsageError` for a field that is given and has no meaning for the folder."""
    for name, why in refused_fields(folder).items():
        value: Any = getattr(request, name)
        if value and value != type(request).__dataclass_fields__[name].default:
            raise UsageError(f"{name} has no meaning for {folder.family.title}: {why}; leave it out")
