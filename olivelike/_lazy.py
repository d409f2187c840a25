"""Packages whose public names are imported at their first use, since what is behind them is heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_from(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`.

    Args:
        package: Its `__name__`, or one that it lies in.
        homes: Public names by the module of that package that has them.
    """

    def find(name: str) -> Any:
        for module, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
