"""`Table`: rows of cells under titles, as lines of text, Markdown and CSV, and on the page of a report."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar

from olivelike._untrusted import one_line

T = TypeVar("T", bound="Table")


@dataclass(frozen=True)
class Column:
    """A column by its title, which has the unit where cells have none."""

    title: str
    cell: Callable[[Any], str]
    """Writes a row's cell; empty for what is not known."""
    right: bool = True
    """Whether it is flush right, as numbers are."""


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first of each being its name."""

    header: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    right: Collection[int] = ()
    """Positions of the columns that are flush right."""
    caption: str = ""

    @classmethod
    def of(cls, rows: Iterable[object], columns: Sequence[Column], caption: str = "") -> Self:
        """Return the table of rows of any type."""
        cells = [tuple(column.cell(row) for column in columns) for row in rows]
        right = [place for place, column in enumerate(columns) if column.right]
        return cls([column.title for column in columns], cells, right, caption)

    def keeping(self, titles: Collection[str]) -> Self:
        """Return the table with these columns alone."""
        kept = [place for place, title in enumerate(self.header) if title in titles]
        rows = [tuple(row[place] for place in kept) for row in self.rows]
        right = [new for new, place in enumerate(kept) if place in self.right]
        return replace(self, header=[self.header[place] for place in kept], rows=rows, right=right)

    def filled(self) -> Self:
        """Return the table without columns that no row has anything in."""
        return self.keeping([title for place, title in enumerate(self.header) if any(row[place] for row in self.rows)])

    def lines(self) -> list[str]:
        """Return lines of text, of columns that are aligned."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.header))]
        aligns = [">" if place in self.right else "<" for place in range(len(self.header))]
        found = [self.caption] if self.caption else []
        for line in lines:
            cells = zip(line, aligns, widths, strict=True)
            found.append("  ".join(f"{cell:{align}{width}}" for cell, align, width in cells).rstrip())
        return found

    def markdown(self) -> list[str]:
        """Return lines of Markdown; cells are Markdown already."""
        return [f"| {' | '.join(line)} |" for line in (self.header, ["---"] * len(self.header), *self.rows)]

    def csv(self, *, header: bool = True) -> str:
        """Return the text of a CSV file, or of rows for its end; `None` is an empty cell."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*([self.header] if header else []), *self.rows])
        return text.getvalue()


_STEERING: Final = re.compile(r"([\\`*_{}\[\]#|~])")


def markdown_text(value: object) -> str:
    """Return text without what would steer Markdown or HTML: it may come from anyone."""
    return _STEERING.sub(r"\\\1", html.escape(one_line(str(value)), quote=False))
