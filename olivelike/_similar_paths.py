"""The end of a message about a path that does not exist: the nearest one that does."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMES = 1000
"""How many names of a folder are looked at."""


def did_you_mean_path(path: Path, otherwise: str, among: Iterable[Path] | None = None) -> str:
    """Return `did you mean …?` if a path of nearly this name exists, else `otherwise`.

    Args:
        path: what was written, and does not exist.
        otherwise: what to say instead.
        among: what it can have meant; by default whatever is there.
    """
    nearest = _similar(path) if among is None else _nearest(path.name, among)
    return otherwise if nearest is None else f"did you mean {_label(nearest)}?"


def _similar(path: Path) -> Path | None:
    """Return the file or folder whose name is nearest to that of a path that does not exist; `None` if none is."""
    folder = path.parent
    if folder == path:
        return None
    if not folder.is_dir():
        other = _similar(folder)
        if other is None:
            return None
        if (other / path.name).exists():
            return other / path.name
        folder = other
    try:
        return _nearest(path.name, islice(folder.iterdir(), _NAMES))
    except OSError:
        return None


def _nearest(name: str, paths: Iterable[Path]) -> Path | None:
    """Return the first of those whose last name is most like `name`."""
    import difflib

    known = {path.name: path for path in reversed(list(paths)) if path.name.isprintable()}
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return known[nearest[0]] if nearest else None


def _label(path: Path) -> str:
    """Return a path relative to the current folder if it lies in it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
