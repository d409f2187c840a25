"""Strips of a picture, in which a network works with the statistics of the whole, where the extra for them is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike._extras import load, place_of
from olivelike.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from olivelike.runtime.sessions.session import Network


class CutError(SessionError):
    """A network can't be cut into segments; the message says why."""


def find_cut(
    path: Path,
    taken: tuple[str, int],
    made: tuple[str, int],
    size: tuple[int, int],
    given: Mapping[str, np.ndarray[Any, Any]],
) -> object:
    """Return how a network is cut, for `run_in_strips`.

    Raises `CutError` if it can't be cut, memory has no room for the picture even so, or the extra is not here.

    Args:
        path: An ONNX file.
        taken: Name and channels of what it takes.
        made: Name and channels of the output that is wanted.
        size: Height and width of what it takes.
        given: Arrays in place of the file's initializers.
    """
    if place_of("STRIPS", "cut") is None:
        raise CutError("the extra `strips` of olivelike is not installed")
    found: object = load("STRIPS", "cut")(path, taken, made, size, given)
    return found


def run_in_strips(network: Network, cut: object, given: np.ndarray[Any, Any], into: np.ndarray[Any, Any]) -> None:
    """Run a network on a picture of shape (1, channels, height, width), and write what it makes into an array."""
    load("STRIPS", "run")(network, cut, given, into)
