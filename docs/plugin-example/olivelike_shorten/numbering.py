"""Short names; a change in this file reruns the pass, for it is part of the pass's code."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def short_names(prefix: str, taken: Collection[str]) -> Iterator[str]:
    """Yield `v0`, `v1`, … without those that are taken."""
    return (name for number in count() if (name := f"{prefix}{number}") not in taken)
