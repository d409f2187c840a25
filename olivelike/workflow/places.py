"""Where a workflow file lies, what lies around it, and the workflow files that are shipped.

Paths come from text that people wrote. Unlike pathlib, nothing here raises for text that can be no path.
"""

from __future__ import annotations

import os
import os.path
from dataclasses import dataclass
from pathlib import Path

from olivelike._text import did_you_mean, did_you_mean_path
from olivelike.errors import WorkflowError

SUFFIXES = (".yaml", ".yml")
_FOLDER = "workflows"


@dataclass(frozen=True)
class Place:
    """A workflow file and the project that it belongs to."""

    path: Path
    project_folder: Path
    """Where relative sources and outputs start."""
    text: str | None = None
    """The content, where it is in no file; `path` then is what records call it."""


def find_workflow(ref: str | Path | Place, folder: Path | None = None) -> Place:
    """Find a workflow file by path, or a shipped one by name.

    The project of a file is the folder around the `workflows/` that it lies in, else its own folder; a
    workflow that is named and not found on disk is a shipped one, and its project is the current folder.

    Args:
        ref: path, or name of a shipped workflow; a place is returned as it is.
        folder: where a relative path starts; by default the current folder.

    Raises:
        WorkflowError: if there is no such file; the message has the nearest shipped name.
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


def _shipped_folder() -> Path:
    from importlib.resources import files

    return Path(str(files("olivelike.workflows")))


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
