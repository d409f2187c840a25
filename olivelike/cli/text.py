"""How numbers and tables look on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.units import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["count", "duration", "size", "table"]


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
