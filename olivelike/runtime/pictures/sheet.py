"""All pictures on one sheet, each with what made it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

_PAPER: Final = "white"
_INK: Final = "black"
_LEAST_WIDTH: Final = 128
"""Of a column, so that small pictures have room for words."""
_MOST_LINES: Final = 3
_GAP: Final = 8


@dataclass(frozen=True, eq=False)
class SheetPicture:
    """A picture and its words."""

    image: Image.Image
    heading: str
    """Above all pictures in a row that have the same one."""
    caption: str
    """Below the picture."""


def picture_sheet(pictures: Sequence[SheetPicture], columns: int = 4) -> Image.Image:
    """Lay pictures out with their words: those of equal heading in rows below it, single ones as square as can be.

    Raises `UsageError` if there is no picture, or no column.

    Args:
        pictures: at least one; smaller ones than the largest keep their size.
        columns: most pictures in a row."""
    from PIL import Image, ImageDraw

    if not pictures or columns < 1:
        raise UsageError(f"a sheet of {len(pictures)} pictures in {columns} columns has nothing to show")
    groups = [list(group) for _, group in groupby(pictures, lambda picture: picture.heading)]
    single = all(len(group) == 1 for group in groups)
    widest = len(groups) if single else max(len(group) for group in groups)
    across = min(columns, math.ceil(math.sqrt(widest)) if single or len(groups) == 1 else widest)
    words = _Words(max(_LEAST_WIDTH, *(picture.image.width for picture in pictures)))
    rows = list(_rows(groups, across, single=single))
    tall = max(picture.image.height for picture in pictures)
    heights = [
        words.height(heading, across) + tall + max(words.height(text, 1) for _, text in row) + 2 * _GAP
        for heading, row in rows
    ]
    sheet = Image.new("RGB", (across * words.column + (across + 1) * _GAP, sum(heights) + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    top = _GAP
    for (heading, row), height in zip(rows, heights, strict=True):
        words.write(draw, (_GAP, top), heading, across)
        below = top + words.height(heading, across)
        for number, (image, text) in enumerate(row):
            left = _GAP + number * (words.column + _GAP)
            sheet.paste(image, (left, below))
            words.write(draw, (left, below + tall), text, 1)
        top += height
    return sheet


def _rows(
    groups: list[list[SheetPicture]], across: int, *, single: bool
) -> Iterator[tuple[str, list[tuple[Image.Image, str]]]]:
    """Return each row: what stands above it, and its pictures with what stands below each."""
    if single:
        cells = [(one.image, f"{one.heading}\n{one.caption}") for (one,) in groups]
        yield from (("", cells[first : first + across]) for first in range(0, len(cells), across))
        return
    for group in groups:
        for first in range(0, len(group), across):
            cells = [(one.image, one.caption) for one in group[first : first + across]]
            yield group[0].heading if first == 0 else "", cells


class _Words:
    """Texts in lines that fit above or below pictures."""

    def __init__(self, column: int) -> None:
        from PIL import ImageFont

        self.column = column
        points = min(20, max(11, column // 28))
        self._font: ImageFont.FreeTypeFont | ImageFont.ImageFont = ImageFont.load_default(points)
        self._line = math.ceil(points * 1.3)

    def height(self, text: str, columns: int) -> int:
        """Return how high a text is that may be so many columns wide."""
        lines = len(self._lines(text, columns))
        return lines * self._line + (_GAP // 2 if lines else 0)

    def write(self, draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, columns: int) -> None:
        """Write a text at its upper left corner."""
        for number, line in enumerate(self._lines(text, columns)):
            top = place[1] + _GAP // 4 + number * self._line
            draw.text((place[0], top), line, fill=_INK, font=self._font)

    def _lines(self, text: str, columns: int) -> list[str]:
        width = columns * self.column + (columns - 1) * _GAP
        return [line for part in text.split("\n", 1) for line in self._wrapped(part, width)]

    def _wrapped(self, text: str, width: int) -> list[str]:
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self._font.getlength(longer) <= width:
                lines[-1] = longer
            elif len(lines) == _MOST_LINES:
                lines[-1] += " …"
                break
            else:
                lines.append(word)
        return [self._cut(line, width) for line in lines]

    def _cut(self, line: str, width: int) -> str:
        """Return a line that is no wider, with a sign that something is left out."""
        if self._font.getlength(line) <= width:
            return line
        line = line.removesuffix(" …")[:width]  # No letter is narrower than a pixel.
        while line and self._font.getlength(f"{line} …") > width:
            line = line[:-1]
        return f"{line} …"
