"""Upscalers that are served: files by their names, for the server and for the child that plans and draws."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from olivelike._text import did_you_mean
from olivelike._untrusted import has_utf8
from olivelike.errors import SourceError


def upscaler_files(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the files of networks that enlarge pictures, by name without suffix; of two with one, the first.

    A name that is no UTF-8 could not be told, and is left out.
    """
    found: dict[str, Path] = {}
    for path in (path for one in folders for path in sorted(one.glob("*.onnx"))):
        if has_utf8(path.stem):
            found.setdefault(path.stem, path)
    return found


def find_upscaler(name: str, folders: Iterable[Path]) -> Path:
    """Return the file of an upscaler. Raises `SourceError` if there is none of that name."""
    files = upscaler_files(folders)
    if name not in files:
        more = did_you_mean(name, files, "upscalers") if files else "start the server with --upscaler-dir DIR"
        raise SourceError(f"there is no upscaler {name!r}; {more}")
    return files[name]
