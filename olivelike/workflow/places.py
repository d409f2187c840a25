"""Places of workflow files, names in their texts, and the workflow files that are shipped.

Paths come from text that people wrote. Unlike pathlib, nothing here raises for text that can be no path.
"""

from __future__ import annotations

import json
import math
import os
import os.path
import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from olivelike._text import did_you_mean, did_you_mean_path
from olivelike._untrusted import Json
from olivelike.errors import UsageError, WorkflowError
from olivelike.model.components import WEIGHT_FILE_SUFFIXES

SUFFIXES = (".yaml", ".yml")
_FOLDER = "workflows"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATA = Path(__file__).parents[1] / "data"
DEMO = "demo"
_DEMO_TRANSFORMER = "demo_transformer"
_DEMO_EDGES = "demo_edges"
_DEMO_LORA = "demo_lcm"


@dataclass(frozen=True)
class Place:
    """A workflow file and the project that it belongs to."""

    path: Path
    project_folder: Path
    """Folder where relative sources and outputs start."""
    text: str | None = None
    """The content, where it is in no file; `path` then is what records call it."""


def find_workflow(ref: str | Path | Place, folder: Path | None = None) -> Place:
    """Find a workflow file by path, or a shipped one by name.

    The project of a file is the folder around the `workflows/` that it lies in, else its own folder; a
    workflow that is named and not found on disk is a shipped one, and its project is the current folder. Raises
    `WorkflowError` if there is no such file; the message has the nearest shipped name.

    Args:
        ref: path, or name of a shipped workflow; a place is returned as it is.
        folder: where a relative path starts; by default the current folder.
    """
    if isinstance(ref, Place):
        return ref
    ref = str(ref)
    path = absolute(ref, folder or Path.cwd())
    if exists(path) and not path.is_dir():
        parent = path.parent
        return Place(path, parent.parent if parent.name == _FOLDER else parent)
    if ref in shipped_names():
        return Place(_shipped_folder() / f"{ref}.yaml", Path.cwd())
    if exists(path):
        raise WorkflowError(f"{ref} is a folder; name a workflow file in it")
    shipped = did_you_mean(Path(ref).stem, shipped_names(), "shipped workflows")
    nearest = did_you_mean_path(path, shipped) if path.suffix or path.parent != Path.cwd() else shipped
    raise WorkflowError(f"there is no workflow file {path}, and none called {ref!r} is shipped; {nearest}")


def shipped_names() -> list[str]:
    """Return the names of the shipped workflows, sorted."""
    return sorted(file.stem for file in _shipped_folder().iterdir() if file.suffix in SUFFIXES)


def shipped_index() -> list[Json]:
    """Return what the index says of each shipped workflow: model, target, precision, chains, measured figures."""
    found: list[Json] = json.loads((_shipped_folder() / "index.json").read_bytes())
    return found


def _shipped_folder() -> Path:
    from importlib.resources import files

    return Path(str(files("olivelike.workflows")))


@dataclass(frozen=True)
class FileRef:
    """A weight file: either `path`, or `hub` with an optional file `name`."""

    path: Path | None = None
    """Absolute; a file, or a folder of one adapter."""
    hub: str | None = None
    name: str | None = None
    """File within the repository; `None` finds the only one."""

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else "/".join(filter(None, (self.hub, self.name)))


def file_ref(text: str, folder: Path) -> FileRef:
    """Tell a path from a hub id: `OWNER/NAME`, or `OWNER/NAME/FILE` where no such folder is here.

    `demo_lcm` is the shipped LoRA where nothing here has that name.
    """
    if text == _DEMO_LORA and not exists(absolute(text, folder)):
        return FileRef(path=_DATA / f"{_DEMO_LORA}.safetensors")
    owner, _, rest = text.partition("/")
    name, _, file = rest.partition("/")
    if is_hub_id(f"{owner}/{name}") and not exists(folder / owner):
        if not file and not is_path(text, folder):
            return FileRef(hub=text)
        if file.lower().endswith(WEIGHT_FILE_SUFFIXES):
            return FileRef(hub=f"{owner}/{name}", name=file)
    return FileRef(path=absolute(text, folder))


def source_path(text: str, folder: Path) -> Path:
    """Return the path that a source names.

    `demo` and `demo_transformer` are the shipped pipelines, and `demo_edges` what leads the first by edges, where
    nothing here has that name.
    """
    path = absolute(text, folder)
    return _DATA / text if text in {DEMO, _DEMO_TRANSFORMER, _DEMO_EDGES} and not exists(path) else path


def is_path(text: str, project_folder: Path) -> bool:
    """Tell whether a source given as text is a folder or file; otherwise it is a hub id."""
    return (
        text.startswith(("./", "../", ".\\", "..\\", "/", "~"))
        or bool(PureWindowsPath(text).drive)
        or exists(project_folder / text)
        or text.lower().endswith(WEIGHT_FILE_SUFFIXES)
        or not is_hub_id(text)
    )


def is_hub_id(text: str) -> bool:
    """Tell whether a text has the shape `owner/name`."""
    return _HUB_ID.fullmatch(text) is not None


# ruff: noqa: PTH100, PTH110, PTH111, PTH118


def absolute(text: str | Path, folder: Path) -> Path:
    """Return an absolute path: `~` expanded, `..` removed, links kept; relative ones start at `folder`."""
    return Path(os.path.abspath(os.path.join(folder, os.path.expanduser(text))))


def may_be_path(text: str) -> bool:
    """Tell whether the system could have a file of this name at all."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def exists(path: Path) -> bool:
    """Tell whether there is a file or folder; false too where that can't be found out."""
    return os.path.exists(path)


def split_weight(text: str) -> tuple[str, float | None]:
    """Split `FILE:WEIGHT`; a colon that no number follows belongs to the file, as behind a Windows drive."""
    file, colon, number = text.rpartition(":")
    if colon and file and _NUMBER.fullmatch(number):
        return file, float(number)
    return text, None


def weighted_file(text: str, folder: Path) -> tuple[FileRef, float]:
    """Return the LoRA that `FILE` or `FILE:WEIGHT` on a command line names, and its weight, by default 1.

    Raises `UsageError` if it names no file, or its weight is infinite or no number.
    """
    file, weight = (text, None) if exists(absolute(text, folder)) else split_weight(text)
    if not file.strip():
        raise UsageError(f"--lora {text!r}: no file is named; use FILE or FILE:WEIGHT")
    named, colon, rest = file.rpartition(":")
    if colon and named and weight is None and absolute(named, folder).is_file() and not exists(absolute(file, folder)):
        raise UsageError(f"--lora {text}: {rest or 'nothing'} is no weight; write a number such as 0.8")
    if weight is not None and not math.isfinite(weight):
        raise UsageError(f"--lora {text!r}: a LoRA's weight is a finite number, not {weight}")
    return file_ref(file, folder), 1.0 if weight is None else weight
