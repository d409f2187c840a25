"""Pictures into files that appear whole, each under a name of its own, after a pattern: `out/{date}/{index:05}.png`.

All pictures on one sheet, each with what made it.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from string import Formatter
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.runtime.pictures.picture_record import FORMATS, PictureRecord, encode_picture

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

_MOST_TRIES = 100_000


class PictureWriter:
    """Writes pictures where the user wants them; a name that is taken is never written to unasked.

    Raises `UsageError` if the output is no name or pattern.

    Args:
        output: a folder, a file's name or a pattern, as `parse_output` reads it.
        folder: name of the pipeline's folder, for `{folder}`.
        overwrite: replace files that were there before and have the names.
        metadata: write what made the pictures into them; the mark that AI did is written in any case.
    """

    def __init__(self, output: str | Path, folder: str = "", *, overwrite: bool = False, metadata: bool = True) -> None:
        self._pattern = parse_output(output)
        self._folder = folder
        self._overwrite = overwrite
        self._metadata = metadata
        self._index: dict[Path, int] = {}
        self._written: set[Path] = set()

    def require_writable(self, record: PictureRecord) -> None:
        """Try the place of a picture with a file that vanishes; folders that are missing are not made yet.

        Raises `UsageError` if nothing can be written there.
        """
        folder = self._folder_of(self._values(record))
        there = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
        try:
            with TemporaryFile(dir=there):
                pass
        except NotADirectoryError:
            raise UsageError(f"{there} is a file; name another folder for the pictures") from None
        except OSError as error:
            raise UsageError(f"{there} can't be written to: {error.strerror or error}") from error

    def save(self, image: Image.Image, record: PictureRecord) -> Path:
        """Write a picture with its record; return its file. Raises `UsageError` if it can't be written."""
        data = encode_picture(image, self._pattern.suffix, record, metadata=self._metadata)
        return self._write(data, self._names(record), overwrite=self._overwrite)

    def save_sheet(self, pictures: Sequence[SheetPicture], record: PictureRecord, columns: int = 4) -> Path:
        """Write all pictures on one sheet, as `sheet.png` or the next free name; return its file.

        Raises `UsageError` if it can't be written. `record` is that of the first one; it goes into the sheet as
        A1111's text.
        """
        sheet = picture_sheet(pictures, columns)
        data = encode_picture(sheet, self._pattern.suffix, record, sheet=True, metadata=self._metadata)
        folder = self._folder_of(self._values(record))
        return self._write(data, _numbered(folder / f"sheet{self._pattern.suffix}"), overwrite=False)

    def _values(self, record: PictureRecord) -> dict[str, str | int]:
        now = datetime.now().astimezone()
        return {
            "index": 1,
            "seed": record.seed or 0,
            "steps": record.steps or 0,
            "width": record.width or 0,
            "height": record.height or 0,
            "prompt": record.prompt,
            "folder": self._folder or record.model or "",
            "scheduler": record.sampler or record.scheduler or "",
            "date": f"{now:%Y-%m-%d}",
            "time": f"{now:%H-%M-%S}",
        }

    def _folder_of(self, values: Mapping[str, str | int]) -> Path:
        return self._pattern.path(values).parent

    def _names(self, record: PictureRecord) -> Iterator[Path]:
        values = self._values(record)
        if not self._pattern.numbered:
            yield from _numbered(self._pattern.path(values))
            return
        folder = self._folder_of(values)
        last = self._index.get(folder) or self._pattern.last_index(folder)
        for index in range(last + 1, last + _MOST_TRIES):
            self._index[folder] = index
            yield self._pattern.path({**values, "index": index})

    def _write(self, data: bytes, names: Iterator[Path], *, overwrite: bool) -> Path:
        for path in names:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # With `overwrite` too, no picture takes the place of one of the same run.
                write_whole(path, data, durable=False, overwrite=overwrite and path not in self._written)
            except FileExistsError:
                if not os.path.lexists(path):
                    raise UsageError(f"{path.parent} is a file; name another folder for the pictures") from None
                continue
            except OSError as error:
                raise UsageError(f"{path} can't be written: {error.strerror or error}") from error
            self._written.add(path)
            return path
        raise UsageError(f"there are {_MOST_TRIES} pictures of these names; choose another output")


def _numbered(path: Path) -> Iterator[Path]:
    """Return a path, then the same with a number: `cat.png`, `cat-2.png`, `cat-3.png`."""
    yield path
    for number in range(2, _MOST_TRIES):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


DEFAULT_NAME: Final = "{index:05}-{seed}.png"
NUMBERS: Final = ("index", "seed", "steps", "width", "height")
TEXTS: Final = ("prompt", "folder", "scheduler", "date", "time")

_OTHER_FORMATS = frozenset({".avif", ".bmp", ".gif", ".heic", ".ico", ".jxl", ".tif", ".tiff"})
_NUMBER_FORMAT = re.compile(r"0?\d{0,2}")
_LONGEST = 60
_LONGEST_BYTES = 120
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})
"""Names that Windows keeps for devices, whatever the suffix."""

Piece = tuple[str, str | None, str]
"""Literal text, then a field with its format."""


@dataclass(frozen=True)
class NamePattern:
    """Names of picture files."""

    parts: tuple[tuple[Piece, ...], ...]
    """The pieces of each folder, and of the file's name."""
    root: Path

    @property
    def suffix(self) -> str:
        """The file's suffix, in small letters."""
        return Path(f"name{self.parts[-1][-1][0]}").suffix.lower()

    @property
    def numbered(self) -> bool:
        """Whether the path holds `{index}`."""
        return any(name == "index" for part in self.parts for _, name, _ in part)

    def path(self, values: Mapping[str, str | int]) -> Path:
        """Return the path for the values of the fields; texts become words that are safe in any file system."""
        names = [_safe("".join(_fill(part, values))) for part in self.parts]
        return self.root.joinpath(*names)

    def last_index(self, folder: Path) -> int:
        """Return the highest `{index}` of the files in a folder that fit the pattern; 0 if there is none."""
        name = self.parts[-1]
        if not any(field == "index" for _, field, _ in name):
            return 0
        expression = re.compile("".join(_expressions(name)))
        matches = (expression.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
        return max((int(match["index"]) for match in matches if match), default=0)


def parse_output(output: str | Path) -> NamePattern:
    """Read what the user gave as the place for pictures.

    Raises `UsageError` if a field, its format or the suffix is none that there is.

    Args:
        output: a folder, a file's name, or a pattern with fields in braces; without a suffix it is a folder, and gets
            names such as `00001-42.png`.
    """
    text = str(output)
    if not text.strip():
        raise UsageError("the output has no name; give a folder, or a file such as picture.png")
    path = Path(text)
    if _is_folder(path):
        # A folder that is there may have braces in its name.
        return NamePattern((tuple(_pieces(DEFAULT_NAME, text)),), path)
    suffix = path.suffix.lower() if path.name else ""
    if suffix in _OTHER_FORMATS:
        raise UsageError(f"output {text!r}: pictures are written as {', '.join(FORMATS)}, not {suffix}")
    if text.endswith(("/", "\\")) or (suffix not in FORMATS and "{" not in path.name):
        path = path / DEFAULT_NAME
    elif suffix not in FORMATS:
        path = path.with_name(path.name + ".png")
    anchor = Path(path.anchor)
    parts = path.relative_to(anchor).parts if path.anchor else path.parts
    return NamePattern(tuple(tuple(_pieces(part, text)) for part in parts), anchor)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # Of a name that is too long, Python 3.11 raises what writing will say.
        return False


def slug(text: str) -> str:
    """Return a text as words of a file's name: letters, digits and hyphens, at most 60."""
    words = re.sub(r"[\W_]+", "-", unicodedata.normalize("NFKC", text)).strip("-").lower()[:_LONGEST]
    return words.encode()[:_LONGEST_BYTES].decode(errors="ignore").strip("-") or "untitled"


def _pieces(part: str, output: str) -> Iterator[Piece]:
    try:
        parsed = list(Formatter().parse(part))
    except ValueError as error:
        raise UsageError(f"output {output!r}: {error}; write {{{{ for a brace that is text") from error
    for literal, name, form, conversion in parsed:
        if name is None:
            yield literal, None, ""
            continue
        if name not in NUMBERS + TEXTS or conversion:
            raise UsageError(
                f"output {output!r}: there is no field {{{name}}}; {did_you_mean(name, NUMBERS + TEXTS, 'fields')}"
            )
        if form and (name not in NUMBERS or not _NUMBER_FORMAT.fullmatch(form)):
            raise UsageError(f"output {output!r}: {{{name}:{form}}}: only numbers take a width, such as {{index:05}}")
        yield literal, name, form or ""


def _fill(part: tuple[Piece, ...], values: Mapping[str, str | int]) -> Iterator[str]:
    for literal, name, form in part:
        yield literal
        if name is not None:
            value = values[name]
            yield format(value, form) if isinstance(value, int) else slug(value)


def _expressions(part: tuple[Piece, ...]) -> Iterator[str]:
    seen = False
    for literal, name, _ in part:
        yield re.escape(literal)
        if name == "index" and not seen:
            seen = True
            yield r"(?P<index>\d{1,15})"
        elif name is not None:
            yield r"\d+" if name in NUMBERS else ".*"


def _safe(name: str) -> str:
    stem, dot, rest = name.partition(".")
    return f"{stem}_{dot}{rest}" if stem.lower() in _DEVICES else name


_PAPER: Final = "white"
_INK: Final = "black"
_LEAST_WIDTH: Final = 128
"""Least width of a column, so that small pictures have room for words."""
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
        columns: most pictures in a row.
    """
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
