"""Sources as a workflow names them, before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from olivelike.errors import SourceError
from olivelike.model.components import Prediction
from olivelike.sources.checkpoint import FolderFiles, SourceFiles
from olivelike.sources.hub import open_hub

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
    """Variant of the weight files, such as `fp16`."""
    prediction: Prediction | None = None
    """Prediction of a single file's UNet; `None` goes by the file. A folder's scheduler says it."""
    distilled: bool | None = None
    """Whether a single file is of the distilled network of a family that also has a base; `None` goes by its name."""
    vae: SourceSpec | None = None
    """Another VAE: its folder, a pipeline's folder, one file, or a hub id."""
    parts: Mapping[str, Path] = field(default_factory=dict)
    """Folder → file of that network, or folder of a tokenizer, for a denoiser in a file of its own."""
    preview: SourceSpec | None = None
    """A tiny VAE for previews, in the same forms."""
    guides: Mapping[str, Sequence[SourceSpec]] = field(default_factory=dict)
    """Guides beside it, by their keys in a workflow: folders, files or hub ids."""
    file: str | None = None
    """File within the repository, for a guide that is a file."""
    network: SourceSpec | None = None
    """Network of a guide that is a file; `None` looks near it."""
    license: str | None = None
    """Name of its licence, where the workflow states it."""

    @property
    def needs_unet(self) -> bool:
        """Whether something beside it has to fit the UNet."""
        return any(self.guides.values())

    @property
    def needs_vae(self) -> bool:
        """Whether something beside it has to fit the VAE: residuals of some guides have sizes by the pixel."""
        return bool(self.vae or self.preview or self.needs_unet)

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
