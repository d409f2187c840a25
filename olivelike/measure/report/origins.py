"""How a record's origins read: of a source, a VAE, a LoRA, an embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.measure.report.record_reading import mapping, text

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMIT: Final = 12
"""Digits of a commit that are shown."""


def origin_text(origin: Mapping[str, Any]) -> str:
    """Return where something comes from: a path, or a hub's repository with file and commit."""
    repository = text(origin.get("repository"))
    if not repository:
        place = text(origin.get("path")) or text(origin.get("name"))
    else:
        place = "/".join(filter(None, (repository, text(origin.get("file")))))
        commit = text(origin.get("commit"))
        place += f" at {commit[:_COMMIT]}" if commit else ""
    other = mapping(origin.get("vae"))
    return f"{place}, VAE of {origin_text(other)}" if other else place
