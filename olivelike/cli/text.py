"""How numbers and tables look on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB")
_MINUTE = 60


def size(count: float) -> str:
    """Return a number of bytes with a unit, such as `1.2 GB`."""
    exponent = 0
    # From here on one decimal would show 1000.0.
    while count >= 999.95 and exponent < len(_UNITS) - 1:
        count /= 1000
        exponent += 1
    return f"{count:.0f} B" if exponent == 0 else f"{count:.1f} {_UNITS[exponent]}"


def duration(seconds: float) -> str:
    """Return a duration such as `0.1 s` or `2 min 05 s`."""
    if seconds < _MINUTE * 2:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    return f"{minutes} min {rest:02} s"


def count(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table; the columns whose positions are in `right` are flush right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return ["  ".join(_cells(line, widths, right)).rstrip() for line in lines]


def _cells(line: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    return [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
