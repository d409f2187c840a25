"""Finding the fewest members of a list that a condition needs, by bisection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def minimal_subset(
    candidates: Sequence[str], enough: Callable[[tuple[str, ...]], bool]
) -> tuple[str, ...] | None:
    """Return a smallest set that is enough: take one member away, and it is not.

    Each round finds the shortest beginning of the list that is enough together with what is already chosen; its last
    member can't be left out. With k members needed of n, that is about k · log2(n) trials.

    Args:
        candidates: The list, likely members first.
        enough: The condition; a set that holds another one that is enough should be enough too.

    Returns:
        The set; `None` if not even all candidates are enough.
    """
    chosen: tuple[str, ...] = ()
    rest = list(candidates)
    if enough(chosen):
        return chosen
    known = False
    while rest:
        length = _shortest(rest, chosen, enough, known=known)
        if length is None:
            return None
        chosen, rest, known = (*chosen, rest[length - 1]), rest[: length - 1], True
        if enough(chosen):
            return chosen
    return None


def _shortest(
    rest: Sequence[str], chosen: tuple[str, ...], enough: Callable[[tuple[str, ...]], bool], *, known: bool
) -> int | None:
    """Return the length of the shortest beginning of `rest` that is enough with `chosen`.

    With `known`, all of `rest` is known to be enough. Likely members come first, so lengths are doubled before halved.
    """
    low, high = 0, 1
    while not ((known and high >= len(rest)) or enough((*chosen, *rest[:high]))):
        if high >= len(rest):
            return None
        low, high = high, min(2 * high, len(rest))
    high = min(high, len(rest))
    while high - low > 1:
        middle = (low + high) // 2
        if enough((*chosen, *rest[:middle])):
            high = middle
        else:
            low = middle
    return high
