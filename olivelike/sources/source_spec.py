"""A source as a workflow names it, and the one place that tells a file, a folder and a repository apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from olivelike.errors import SourceError
from olivelike.sources.hub import open_hub
from olivelike.sources.source_files import FolderFiles, SourceFiles

if TYPE_CHECKING:
    from olivelike.model.families import Prediction

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class SourceSpec:
    """A source as a workflow names it: either `path` or `hub` is set."""

    path: Path | None = None
    """A diffusers folder, or a checkpoint in one file."""
    hub: str | None = None
    """A repository, such as `stable-diffusion-v1-5/stable-diffusion-v1-5`."""
    revision: str | None = None
    """Branch, tag or commit of the repository; `None` is its main branch."""
    variant: str | None = None
    """Which of several weight files, such as `fp16`."""
    prediction: Prediction | None = None
    """What the UNet of a single file predicts; `None` goes by the file. A folder's scheduler says it."""
    vae: SourceSpec | None = None
    """Another VAE: its folder, a pipeline's folder, one file, or a hub id."""

    @property
    def is_file(self) -> bool:
        """Whether it is a checkpoint in one file."""
        return self.path is not None and self.path.is_file()

    def open(self, read_file: Callable[[Path], Opened], read_files: Callable[[SourceFiles], Opened]) -> Opened:
        """Call `read_file` with the path of a single file, or `read_files` with those of a folder or repository.

        Raises `SourceError` if the folder or repository can't be had, or what is called raises.
        """
        if self.path is not None:
            return read_file(self.path) if self.is_file else read_files(FolderFiles.local(self.path))
        if self.hub is None:
            raise SourceError("neither a folder, a file nor a hub id is named; set `source:`, or leave `vae:` out")
        return open_hub(self.hub, self.revision, read_files)
