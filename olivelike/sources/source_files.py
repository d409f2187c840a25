"""The files of a source, wherever they are: a folder, the hub's cache, or the hub itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from olivelike import _untrusted as untrusted
from olivelike._text import did_you_mean_path
from olivelike.errors import SourceError
from olivelike.model.records.origin import Origin

if TYPE_CHECKING:
    from olivelike.model.architecture import Config


class SourceFiles(Protocol):
    """Read access to a source by relative path, such as `unet/config.json`."""

    @property
    def origin(self) -> Origin:
        """Where the files come from, for the record."""

    @property
    def where(self) -> str:
        """The source in words, for messages."""

    @property
    def remedy(self) -> str:
        """How to get a file that is missing."""

    def names(self, folder: str) -> frozenset[str]:
        """Return the names of the files in `folder`; the empty string is the source's own folder."""

    def path(self, relative: str) -> Path:
        """Return the local path of a file that `names` lists, after a download where one is needed."""


@dataclass(frozen=True)
class FolderFiles:
    """Files in a folder of this machine."""

    root: Path
    where: str
    remedy: str
    origin: Origin

    @classmethod
    def local(cls, root: Path) -> FolderFiles:
        """Take a user's own folder. Raises `SourceError` if it does not exist."""
        if not root.is_dir():
            otherwise = f"check its name, or download the pipeline into it with `hf download REPO --local-dir {root}`"
            raise SourceError(f"{root}: no such folder or file; {did_you_mean_path(root, otherwise)}")
        remedy = f"download it again, for instance with `hf download REPO --local-dir {root}`"
        return cls(root, str(root), remedy, Origin.local("folder", root))

    def names(self, folder: str) -> frozenset[str]:
        """Return the names of the files in `folder`."""
        path = self.root / folder
        return frozenset(entry.name for entry in path.iterdir() if entry.is_file()) if path.is_dir() else frozenset()

    def path(self, relative: str) -> Path:
        """Return the path of a file."""
        return self.root / relative


def read_json(files: SourceFiles, relative: str) -> Config:
    """Return a JSON object of the source. Raises `SourceError` if the file is absent, or holds something else."""
    folder, _, name = relative.rpartition("/")
    if name not in files.names(folder):
        raise missing_file(files, relative)
    path = files.path(relative)
    try:
        value = untrusted.read_json(path)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: can't be read as JSON: {error}; {files.remedy}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path}: expected a JSON object, found {type(value).__name__}; {files.remedy}")
    return value


def missing_file(files: SourceFiles, relative: str) -> SourceError:
    """Return the error for a file that should be there, saying whether its download was cut off."""
    message = f"{files.where}: {relative} is missing"
    if isinstance(files, FolderFiles) and next(_unfinished(files.root), None) is not None:
        message += ", and a download into this folder did not finish"
    return SourceError(f"{message}; {files.remedy}")


def _unfinished(root: Path) -> Iterator[Path]:
    yield from (root / ".cache" / "huggingface" / "download").rglob("*.incomplete")
    yield from root.glob("*/*.incomplete")
    if root.parent.name == "snapshots":
        yield from (root.parent.parent / "blobs").glob("*.incomplete")
