"""Versions of the installed distributions that passes declare as their tools."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING

from olivelike.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterable


def tool_versions(names: Iterable[str]) -> dict[str, str]:
    """Return each distribution's version, by the name given; nothing is imported.

    Raises:
        MissingError: if some are not installed; the message has the command that installs them.
    """
    from importlib.metadata import PackageNotFoundError

    versions: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        try:
            versions[name] = _version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise MissingError(f"not installed: {', '.join(missing)}; run `pip install {' '.join(missing)}`")
    return versions


_SAME = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")}
"""Distributions that bring the same module; only one of them is installed."""


@cache
def _version(name: str) -> str:
    """Return a distribution's version; several passes ask for the same ones."""
    from importlib.metadata import PackageNotFoundError, version

    for other in _SAME.get(name, ()):
        with contextlib.suppress(PackageNotFoundError):
            return version(other)
    return version(name)
