"""Files beside a layout's networks, and its demands on a workflow, by an extra: the interface `PACKAGES`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._extras import needed
from olivelike.model.client_layouts import LAYOUTS

if TYPE_CHECKING:
    from olivelike.model.records.output import FileFacts, OutputRecord
    from olivelike.model.targets import TargetChoice
    from olivelike.workflow import LoadedWorkflow, Output

CONFIG_FILE = "config.json"
"""A network's config, beside its model."""


@dataclass(frozen=True)
class Packaged:
    """Networks and files that a package is put together of."""

    name: str
    """Name of the workflow."""
    target: TargetChoice
    models: Mapping[str, Path]
    """Model file of each network, with its `config.json` beside it."""
    pipeline: Mapping[str, bytes]
    """Index, tokenizers, scheduler and feature extractor, by the path that they have in a pipeline's folder."""
    networks: Mapping[str, FileFacts] = field(default_factory=dict)
    """Files of the networks, by their path in the folder."""
    size: tuple[int, int] | None = None
    """Width and height of the only pictures that the networks make."""


class Package(ABC):
    """A layout's package: what `PACKAGES` of an extra gives, by the name that the layout has of it."""

    names: Collection[str] = ()
    """Files beside networks and pipeline that are known before anything is made."""

    def check(self, output: Output, workflow: LoadedWorkflow, only: Collection[str]) -> None:  # noqa: B027  (optional)
        """Refuse, before anything is made, what could not be read as such a package; raises `UsageError`."""

    @abstractmethod
    def files(self, package: Packaged) -> dict[str, bytes]:
        """Return all files beside the networks, by relative path.

        Raises `SourceError` if a network's file is missing, or the package can't hold it.
        """

    def facts(self, path: Path, record: OutputRecord) -> Mapping[str, str]:  # noqa: ARG002
        """Return what `info` tells of such a folder beyond its record."""
        return {}


def package_of(layout: str) -> Package | None:
    """Return what an extra has of a layout, `None` if the layout needs none.

    Raises `MissingError` if the extra is not here.
    """
    if (name := LAYOUTS[layout].package) is None:
        return None
    package: Package = needed("PACKAGES", name, f"layout {layout}")()
    return package
