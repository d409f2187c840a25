"""The end of a message about a path that does not exist: the nearest one that does."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

_NAMES = 1000
"""How many names of a folder are looked at."""


def did_you_mean_path(path: Path, otherwise: str) -> str:
    """Return `did you mean …?` if a path of nearly this name exists, else `otherwise`."""
    nearest = similar_path(path)
    return otherwise if nearest is None else f"did you mean {_label(nearest)}?"


def similar_path(path: Path) -> Path | None:
    """Return the file or folder whose name is nearest to that of a path that does not exist; `None` if none is."""
    import difflib

    folder = path.parent
    if folder == path:
        return None
    if not folder.is_dir():
        other = similar_path(folder)
        if other is None:
            return None
        if (other / path.name).exists():
            return other / path.name
        folder = other
    try:
        names = [entry.name for entry in islice(folder.iterdir(), _NAMES) if entry.name.isprintable()]
    except OSError:
        return None
    nearest = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return folder / nearest[0] if nearest else None


def _label(path: Path) -> str:
    """Return a path relative to the current folder if it lies in it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
