"""Families of pipelines: a file for each states all that is particular to it, and this one finds the right file.

Everything else asks the value `Family` and knows no family by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from olivelike.families import refiner, sd1, sd2, sdxl
from olivelike.families.family import Family, HalfPolicy

if TYPE_CHECKING:
    from olivelike.model.architecture import Architecture

FAMILIES: Final[Mapping[str, Family]] = {module.FAMILY.name: module.FAMILY for module in (sd1, sd2, sdxl, refiner)}
"""Name → family; where two could be meant, the earlier one is."""


def family_of_text_width(width: int) -> str | None:
    """Return the family whose denoiser attends to prompt vectors of this width; `None` if it is of none."""
    return next((name for name, family in FAMILIES.items() if family.text_width == width), None)


def family_of_folder(index: Mapping[str, Any], components: Collection[str], denoiser: Mapping[str, Any]) -> Family:
    """Return the family of a pipeline's folder: the first that takes it for its own.

    Folders of other exporters may lack each of these; what tells nothing is of Stable Diffusion 1.x.

    Args:
        index: Content of `model_index.json`; may be empty.
        components: Names of the networks that are there.
        denoiser: Config of the denoiser; may be empty.
    """
    found = (family for family in FAMILIES.values() if family.owns(index, components, denoiser))
    return next(found, FAMILIES["sd1"])


def half_policy(architecture: Architecture) -> HalfPolicy:
    """Return the default for one network: what of it stays in float32 by what its family says."""
    return next(filter(None, (family.half(architecture) for family in FAMILIES.values())), HalfPolicy())
