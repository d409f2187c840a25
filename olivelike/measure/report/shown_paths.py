"""Paths as a reader elsewhere may see them: relative to the project, or the name alone."""

from __future__ import annotations

import re
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Final

from olivelike.model.records.reading import from_json, to_json
from olivelike.model.records.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PLACES: Final = frozenset({"file", "project", "output", "outputs", "path", "log", "folder"})
"""Keys whose values are paths, or lists of them."""
_FILES_BY_PLACE: Final = frozenset({"output_files", "output_bytes"})
"""Keys of maps whose own keys are paths."""
_QUOTED: Final = re.compile(r"""(['"`])((?:/|[A-Za-z]:[\\/]|\\\\)[^'"`\n]*)\1""")
_ABSOLUTE: Final = re.compile(
    r"""(?<![\w.:/\\~…-])(?:/|[A-Za-z]:[\\/]|\\\\)(?:[^\s/\\:*?"'`<>|,;()\[\]{}]+[\\/])+[^\s/\\:*?"'`<>|,;()\[\]{}]*"""
)
"""Of a path with a space, this finds what is before it; those that the record names are found whole."""


def without_absolute_paths(record: RunRecord, others: Sequence[object]) -> tuple[RunRecord, list[object]]:
    """Return a record, and JSON about the same run, without absolute paths in any text of theirs.

    Args:
        record: Of a run; its project folder is what paths in it are shown relative to.
        others: What lies beside it.
    """
    root, values = _project(record), [to_json(record), *others]
    known = {place: _short(place, root) for value in values for place in _places(value)}
    home = str(Path.home())
    if len(Path(home).parts) > 1:
        known.setdefault(home, "~")
    if root is not None:
        known[root] = "."
    ordered = sorted(known, key=len, reverse=True)
    named = re.compile(rf"(?<![\w./\\])(?:{'|'.join(map(re.escape, ordered))})(?![\w-])") if ordered else None

    def shorten(text: str) -> str:
        if named is not None:
            if root is not None:
                text = text.replace(f"{root}/", "").replace(f"{root}\\", "")
            text = named.sub(lambda found: known[found[0]], text)
        text = _QUOTED.sub(lambda found: f"{found[1]}{_short(found[2], root)}{found[1]}", text)
        return _ABSOLUTE.sub(lambda found: _short(found[0], root), text)

    shortened, *rest = (_mapped(value, shorten) for value in values)
    return from_json(RunRecord, shortened), rest


def _project(record: RunRecord) -> str | None:
    """Return the project folder; records of earlier versions name the workflow file alone."""
    if record.project is not None and _is_absolute(record.project):
        return record.project
    if record.file is None or not _is_absolute(record.file):
        return None
    folder = _pure(record.file).parent
    return str(folder.parent if folder.name == "workflows" else folder)


def _places(value: object, key: str = "") -> Iterator[str]:
    """Yield the absolute paths that stand where paths do."""
    if isinstance(value, str):
        if key in _PLACES and _is_absolute(value):
            yield value.rstrip("/\\")
    elif isinstance(value, list):
        for entry in value:
            yield from _places(entry, key)
    elif isinstance(value, dict):
        for name, entry in value.items():
            if key in _FILES_BY_PLACE and _is_absolute(name):
                yield name.rstrip("/\\")
            yield from _places(entry, name)


def _is_absolute(text: str) -> bool:
    is_path = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()
    return is_path and len(text.strip("/\\")) > 0 and "\n" not in text


def _short(path: str, root: str | None) -> str:
    place = _pure(path)
    if root is not None and place.is_relative_to(_pure(root)):
        return place.relative_to(root).as_posix()
    return f"…/{place.name}" if place.name else "…"


def _pure(path: str) -> PurePath:
    return PureWindowsPath(path) if re.match(r"[A-Za-z]:|\\\\", path) else PurePosixPath(path)


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(entry, change) for entry in value]
    if isinstance(value, dict):
        return {change(name): _mapped(entry, change) for name, entry in value.items()}
    return value
