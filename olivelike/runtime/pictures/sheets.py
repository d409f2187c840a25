"""Many pictures on one sheet, each with what made it: in rows by their headings, or in the cells of a plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

from olivelike.errors import UsageError
from olivelike.runtime.pictures.picture_reading import MOST_PIXELS

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

_PAPER: Final = "white"
_INK: Final = "black"
_EMPTY: Final = "#e8e8e8"
_LEAST_WIDTH: Final = 128
"""Least width of a column, so that small pictures have room for words."""
_LEAST_SIDE: Final = 16
"""Least side of a picture that is made smaller for its sheet."""
_MOST_LINES: Final = 3
_GAP: Final = 8
_FLAGGED: Final = "flagged"


@dataclass(frozen=True, eq=False)
class SheetPicture:
    """A picture and its words."""

    image: Image.Image
    heading: str = ""
    """Above all pictures in a row that have the same one."""
    caption: str = ""
    """Below the picture."""
    flagged: bool = False
    """Whether it is black since the safety checker flagged it; the sheet says so."""


@dataclass(frozen=True)
class PlotHeads:
    """Words around the cells of a plot; an axis that it does not have is one empty head."""

    title: str
    across: Sequence[str] = ("",)
    """Above the columns, from left to right."""
    down: Sequence[str] = ("",)
    """Left of the rows, from top to bottom."""
    layers: Sequence[str] = ("",)
    """Above each table of the same rows and columns."""


def picture_sheet(pictures: Sequence[SheetPicture], columns: int = 4) -> Image.Image:
    """Lay pictures out with their words: those of equal heading in rows below it, single ones as square as can be.

    Pictures are made smaller where the sheet would have more than `MOST_PIXELS`.

    Raises `UsageError` if there is no picture, or no column.

    Args:
        pictures: at least one; smaller ones than the largest keep their size.
        columns: most pictures in a row.
    """
    from PIL import Image, ImageDraw

    if not pictures or columns < 1:
        raise UsageError(f"a sheet of {len(pictures)} pictures in {columns} columns has nothing to show")
    pictures = _fitting(pictures)
    groups = [list(group) for _, group in groupby(pictures, lambda picture: picture.heading)]
    single = all(len(group) == 1 for group in groups)
    widest = len(groups) if single else max(len(group) for group in groups)
    across = min(columns, math.ceil(math.sqrt(widest)) if single or len(groups) == 1 else widest)
    column = max(_LEAST_WIDTH, *(picture.image.width for picture in pictures))
    width = across * column + (across - 1) * _GAP
    words = _Words(column, (text for one in pictures for text in (one.heading, one.caption)))
    rows = list(_rows(groups, across, single=single))
    tall = max(picture.image.height for picture in pictures)
    heights = [
        words.height(heading, width) + tall + max(words.height(text, column) for _, text in row) + 2 * _GAP
        for heading, row in rows
    ]
    sheet = Image.new("RGB", (width + 2 * _GAP, sum(heights) + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    top = _GAP
    for (heading, row), height in zip(rows, heights, strict=True):
        words.write(draw, (_GAP, top), heading, width)
        below = top + words.height(heading, width)
        for number, (picture, text) in enumerate(row):
            left = _GAP + number * (column + _GAP)
            _place(sheet, draw, picture, (left, below), words)
            words.write(draw, (left, below + tall), text, column)
        top += height
    return sheet


def plot_sheet(cells: Mapping[tuple[int, int, int], Sequence[SheetPicture]], heads: PlotHeads) -> Image.Image:
    """Lay pictures out in the cells of a plot, with its title above, and heads above columns and left of rows.

    Pictures are made smaller where the sheet would have more than `MOST_PIXELS`; cells without a picture are grey.

    Raises `UsageError` if no cell has a picture.

    Args:
        cells: the pictures of each cell by its layer, row and column; several lie side by side, as square as can be.
        heads: the words, at least one for each layer, row and column.
    """
    from PIL import Image, ImageDraw

    placed = {place: held for place, held in cells.items() if held}
    if not placed:
        raise UsageError("a plot without pictures has nothing to show")
    count = len(heads.layers) * len(heads.down) * len(heads.across)
    most = max(len(held) for held in placed.values())
    small = iter(_fitting([one for held in placed.values() for one in held], count * most))
    placed = {place: [next(small) for _ in held] for place, held in placed.items()}
    wide = max(one.image.width for held in placed.values() for one in held)
    tall = max(one.image.height for held in placed.values() for one in held)
    beside = math.ceil(math.sqrt(most))
    column = max(_LEAST_WIDTH, beside * (wide + _GAP) - _GAP)
    row = math.ceil(most / beside) * (tall + _GAP) - _GAP
    words = _Words(max(_LEAST_WIDTH, wide), (heads.title, *heads.across, *heads.down, *heads.layers))
    longest = max((words.width(word) for head in heads.down for word in head.split()), default=0)
    side = min(max(column, min(longest, 2 * column)), max(words.width(head) for head in heads.down))
    beside_row = words.lines(row)
    first = _GAP + (side + _GAP if side else 0)
    width = first + len(heads.across) * (column + _GAP)
    table = width - first - _GAP
    title = words.height(heads.title, width - 2 * _GAP)
    head = max(words.height(text, column) for text in heads.across)
    rows = [max(row, words.height(text, side, beside_row)) + _GAP for text in heads.down]
    tops = [words.height(text, table) for text in heads.layers]
    sheet = Image.new("RGB", (width, 2 * _GAP + title + sum(tops) + len(tops) * (head + sum(rows) + _GAP)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    words.write(draw, (_GAP, _GAP), heads.title, width - 2 * _GAP)
    top = 2 * _GAP + title
    for layer, (text, above) in enumerate(zip(heads.layers, tops, strict=True)):
        words.write(draw, (first, top), text, table)
        top += above
        for number, name in enumerate(heads.across):
            words.write(draw, (first + number * (column + _GAP), top), name, column, "middle")
        top += head
        for down, (name, height) in enumerate(zip(heads.down, rows, strict=True)):
            above_name = (height - _GAP - words.height(name, side, beside_row)) // 2
            words.write(draw, (_GAP, top + above_name), name, side, most=beside_row)
            for across in range(len(heads.across)):
                left = first + across * (column + _GAP)
                held = placed.get((layer, down, across), ())
                if not held:
                    draw.rectangle((left, top, left + column - 1, top + row - 1), fill=_EMPTY)
                for number, picture in enumerate(held):
                    off = (column - beside * (wide + _GAP) + _GAP) // 2
                    place = left + off + number % beside * (wide + _GAP), top + number // beside * (tall + _GAP)
                    _place(sheet, draw, picture, place, words)
            top += height
        top += _GAP
    return sheet


def _fitting(pictures: Sequence[SheetPicture], places: int = 0) -> Sequence[SheetPicture]:
    """Return pictures, made smaller if so many places of the largest have more than `MOST_PIXELS`."""
    largest = max(one.image.width for one in pictures) * max(one.image.height for one in pictures)
    share = math.sqrt(MOST_PIXELS / (largest * max(places, len(pictures))))
    if share >= 1:
        return pictures
    small = [tuple(max(_LEAST_SIDE, int(side * share)) for side in one.image.size) for one in pictures]
    return [
        replace(one, image=one.image.resize((width, height)))
        for one, (width, height) in zip(pictures, small, strict=True)
    ]


def _place(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, picture: SheetPicture, place: tuple[int, int], words: _Words
) -> None:
    sheet.paste(picture.image, place)
    if picture.flagged:
        middle = place[1] + picture.image.height // 2 - words.height(_FLAGGED, picture.image.width) // 2
        words.write(draw, (place[0], middle), _FLAGGED, picture.image.width, "middle", ink=_PAPER)


def _rows(
    groups: list[list[SheetPicture]], across: int, *, single: bool
) -> Iterator[tuple[str, list[tuple[SheetPicture, str]]]]:
    """Return each row: what stands above it, and its pictures with what stands below each."""
    if single:
        cells = [(one, f"{one.heading}\n{one.caption}") for (one,) in groups]
        yield from (("", cells[first : first + across]) for first in range(0, len(cells), across))
        return
    for group in groups:
        for first in range(0, len(group), across):
            cells = [(one, one.caption) for one in group[first : first + across]]
            yield group[0].heading if first == 0 else "", cells


class _Words:
    """Texts in lines that fit around pictures of a width."""

    def __init__(self, column: int, texts: Iterable[str]) -> None:
        from olivelike.runtime.pictures.sheet_fonts import font_for

        points = min(20, max(11, column // 28))
        self._font, self._others = font_for(texts, points)
        self._line = math.ceil(points * 1.3)

    def width(self, text: str) -> int:
        """Return how wide a text is on one line."""
        return math.ceil(self._font.getlength(text.translate(self._others)))

    def lines(self, height: int) -> int:
        """Return how many lines a text may have beside what is so high."""
        return max(_MOST_LINES, (height - _GAP // 2) // self._line)

    def height(self, text: str, width: int, most: int = _MOST_LINES) -> int:
        """Return how high a text is that may be so wide, of so many lines at most."""
        lines = len(self._lines(text, width, most))
        return lines * self._line + (_GAP // 2 if lines else 0)

    def write(
        self,
        draw: ImageDraw.ImageDraw,
        place: tuple[int, int],
        text: str,
        width: int,
        align: Literal["left", "middle"] = "left",
        *,
        ink: str = _INK,
        most: int = _MOST_LINES,
    ) -> None:
        """Write a text into a box, whose upper left corner is given."""
        for number, line in enumerate(self._lines(text, width, most)):
            top = place[1] + _GAP // 4 + number * self._line
            free = max(0, width - self.width(line)) // 2 if align == "middle" else 0
            draw.text((place[0] + free, top), line, fill=ink, font=self._font)

    def _lines(self, text: str, width: int, most: int) -> list[str]:
        return [line for part in text.split("\n", 1) for line in self._wrapped(part, width, most)]

    def _wrapped(self, text: str, width: int, most: int) -> list[str]:
        lines: list[str] = []
        # No letter is narrower than a pixel: what is behind so many is left out in any case.
        for word in " ".join(text.translate(self._others).split())[: (most + 1) * (width + 1)].split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self._font.getlength(longer) <= width:
                lines[-1] = longer
            elif len(lines) == most:
                lines[-1] += " …"
                break
            else:
                lines.append(word)
        return [self._cut(line, width) for line in lines]

    def _cut(self, line: str, width: int) -> str:
        """Return a line that is no wider, with a sign that something is left out."""
        if self._font.getlength(line) <= width:
            return line
        line = line.removesuffix(" …")[:width]
        while line and self._font.getlength(f"{line} …") > width:
            line = line[:-1]
        return f"{line} …"
