"""Paths from text that people wrote. Unlike pathlib, nothing here raises for text that can be no path."""
# ruff: noqa: PTH100, PTH110, PTH111, PTH118

from __future__ import annotations

import os.path
from pathlib import Path


def absolute(text: str | Path, folder: Path) -> Path:
    """Return an absolute path: `~` expanded, `..` removed, links kept; relative ones start at `folder`."""
    return Path(os.path.abspath(os.path.join(folder, os.path.expanduser(text))))


def exists(path: Path) -> bool:
    """Tell whether there is a file or folder; false too where that can't be found out."""
    return os.path.exists(path)
