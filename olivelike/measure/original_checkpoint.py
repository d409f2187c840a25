"""Place of the checkpoint that an optimised folder was made of."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from olivelike._untrusted import object_or_empty
from olivelike.data import demo_folder
from olivelike.errors import SourceError, UsageError
from olivelike.families import denoiser_among
from olivelike.model.components import INDEX_FILE
from olivelike.model.records.output import RECORD_FILE, OutputRecord

_BUILD: Final = ("block_out_channels", "layers_per_block", "cross_attention_dim", "in_channels")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


class OriginalAbsent(SourceError):  # noqa: N818  (callers say what to do without it)
    """The original is not where it is looked for; the message says where that is."""


@dataclass(frozen=True)
class OriginalCheckpoint:
    """Place of the original, as diffusers takes it."""

    place: str
    """A diffusers folder, a `.safetensors` file or a hub id."""
    revision: str | None = None
    """Commit of a hub id."""


def named_checkpoint(text: str) -> OriginalCheckpoint:
    """Return the checkpoint that the user names.

    Raises `UsageError` if there is nothing of that name, and it is no hub id.
    """
    path = Path(text).expanduser()
    if (path / INDEX_FILE).is_file() or path.is_file():
        return OriginalCheckpoint(str(path.absolute()))
    if path.is_dir():
        raise UsageError(f"--checkpoint: {path} has no {INDEX_FILE}, so it is no folder of diffusers")
    if _HUB_ID.fullmatch(text):
        return OriginalCheckpoint(text)
    raise UsageError(f"--checkpoint: {text} is neither a folder, nor a file, nor a hub id (OWNER/NAME)")


def recorded_checkpoint(folder: Path) -> OriginalCheckpoint:
    """Return the checkpoint that a folder's record names.

    Records of files and folders have the name alone, and a path if they lie in the output's project: without it the
    name is looked for where the output lies, one folder further up, in the current folder, and among what comes with
    the package. A folder counts if its UNet is built like the output's. Raises `OriginalAbsent` if it is not found.
    """
    record = OutputRecord.read(folder)
    if record is None:
        raise OriginalAbsent(
            f"{folder / RECORD_FILE} does not say what the folder was made of; name the original with --checkpoint"
        )
    source = record.source
    if source.kind == "hub" and source.file is None:
        return OriginalCheckpoint(source.name, source.commit)
    name = source.file or source.name
    near = source.found_from(folder)
    # A record may come from anyone, and says a name, not a way to somewhere else.
    named = [] if Path(name).anchor or ".." in Path(name).parts else [place / name for place in _places(folder)]
    for place in dict.fromkeys([*([near] if near else []), *named]):
        with contextlib.suppress(OSError):  # Such as a name that is too long for a file's.
            if _is_original(place, folder):
                return OriginalCheckpoint(str(place))
    raise OriginalAbsent(
        f"the folder was made of {name!r}, which is neither near it nor here; name it with --checkpoint"
    )


def _places(folder: Path) -> Iterator[Path]:
    folder = folder.resolve()
    yield folder.parent
    yield folder.parent.parent
    yield Path.cwd()
    yield demo_folder().parent


def _is_original(place: Path, folder: Path) -> bool:
    if place.is_file():
        return True
    if not (place / INDEX_FILE).is_file() or (place / RECORD_FILE).exists():
        return False
    denoiser = denoiser_among([one.name for one in folder.glob("*")]) or ""
    built, wanted = (object_or_empty(path / denoiser / "config.json") for path in (place, folder))
    return all(built.get(key) == wanted[key] for key in _BUILD if key in wanted)
