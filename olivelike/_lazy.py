"""Packages whose public names are imported at their first use, since what is behind them is heavy."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^    from (\S+) import (?:\(([^)]+)\)|(.+))$", re.MULTILINE)

_EXTRAS = "olivelike.extras."


@cache
def homes(file: str) -> dict[str, str]:
    """Return the module of each name that a package's `__init__` imports for type checkers: those that it hands on.

    Names of an extra are left out where its folder is gone.
    """
    found = _IMPORT.findall(Path(file).read_text(encoding="utf-8"))
    here = [one for one in found if not one[0].startswith(_EXTRAS) or _folder(one[0]).is_dir()]
    return {name: module for module, *listed in here for name in re.findall(r"(\w+)(?: as \w+)?", "".join(listed))}


def _folder(module: str) -> Path:
    return Path(__file__).with_name("extras") / module.removeprefix(_EXTRAS).partition(".")[0]


def names_from(package: str, file: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, given its `__name__` and `__file__`."""

    def find(name: str) -> Any:
        if name not in homes(file):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes(file)[name]), name)

    return find
