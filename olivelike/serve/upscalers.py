"""Upscalers that are served: files by their names, for the server and for the child that plans and draws."""

from __future__ import annotations

import re
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


def named_upscaler(name: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that people call so: by its file, or as A1111's lists have it.

    A1111 lists Real-ESRGAN's RealESRGAN_x4plus as "R-ESRGAN 4x+", and realesr-general-x4v3 as "R-ESRGAN General 4xV3"
    (`modules/realesrgan_model.py`); so case, spaces and dashes count nothing.
    """
    names = list(known)
    if name in names:
        return name
    return next((one for one in names if _plain(one) == _plain(name) != ""), None)


def _plain(name: str) -> str:
    text = re.sub(r"real-?esrgan|r-esrgan", "realesr", name.casefold().replace("+", "plus"))
    return re.sub(r"[\W_]", "", re.sub(r"(\d)x", r"x\1", text))


def find_upscaler(name: str, folders: Iterable[Path]) -> Path:
    """Return the file of an upscaler. Raises `SourceError` if there is none of that name."""
    files = upscaler_files(folders)
    found = named_upscaler(name, files)
    if found is None:
        more = did_you_mean(name, files, "upscalers") if files else "start the server with --upscaler-dir DIR"
        raise SourceError(f"there is no upscaler {name!r}; {more}")
    return files[found]
