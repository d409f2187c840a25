"""Paths from text that people wrote. Unlike pathlib, nothing here raises for text that can be no path."""
# ruff: noqa: PTH100, PTH110, PTH111, PTH118

from __future__ import annotations

import os
import os.path
from pathlib import Path


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
