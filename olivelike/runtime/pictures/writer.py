"""Pictures into files that appear whole, each under a name of its own, after a pattern: `out/{date}/{index:05}.png`."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from string import Formatter
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.model.records.output import is_device
from olivelike.runtime.pictures.picture_record import FORMATS, PictureRecord, PictureSigner, encode_picture
from olivelike.runtime.pictures.sheets import SheetPicture, picture_sheet

if TYPE_CHECKING:
    from PIL import Image


_MOST_TRIES = 100_000

DEFAULT_NAME: Final = "{index:05}-{seed}.png"
NAME_OF_MANY: Final = "{index:05}-{initial}-{seed}.png"
"""Usual names of pictures that start from several."""


class PictureWriter:
    """Writes pictures where the user wants them; a name that is taken is never written to unasked.

    Raises `UsageError` if the output is no name or pattern.

    Args:
        output: a folder, a file's name or a pattern, as `parse_output` reads it.
        folder: name of the pipeline's folder, for `{folder}`.
        overwrite: replace files that were there before and have the names.
        metadata: write what made the pictures into them; the mark that AI did is written in any case.
        signer: signs them.
        usual: names in a folder.
    """

    def __init__(
        self,
        output: str | Path,
        folder: str = "",
        *,
        overwrite: bool = False,
        metadata: bool = True,
        signer: PictureSigner | None = None,
        usual: str = DEFAULT_NAME,
    ) -> None:
        self._pattern = parse_output(output, usual)
        self._folder = folder
        self._overwrite = overwrite
        self._metadata = metadata
        self._signer = signer
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
        data = encode_picture(image, self._pattern.suffix, record, metadata=self._metadata, signer=self._signer)
        return self._write(data, self._names(record), overwrite=self._overwrite)

    def save_sheet(self, pictures: Sequence[SheetPicture], record: PictureRecord) -> Path:
        """Write all pictures on one sheet, as `sheet.png` or the next free name; return its file.

        Raises `UsageError` if it can't be written. `record` is that of the first one; it goes into the sheet as
        A1111's text.
        """
        sheet = picture_sheet(pictures)
        data = encode_picture(
            sheet, self._pattern.suffix, record, sheet=True, metadata=self._metadata, signer=self._signer
        )
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
            "initial": Path(record.init_image.name).stem if record.init_image else "",
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


NUMBERS: Final = ("index", "seed", "steps", "width", "height")
TEXTS: Final = ("prompt", "initial", "folder", "scheduler", "date", "time")

_OTHER_FORMATS = frozenset({".avif", ".bmp", ".gif", ".heic", ".ico", ".jxl", ".tif", ".tiff"})
_NUMBER_FORMAT = re.compile(r"0?\d{0,2}")
_LONGEST = 60
_LONGEST_BYTES = 120

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


def parse_output(output: str | Path, usual: str = DEFAULT_NAME) -> NamePattern:
    """Read what the user gave as the place for pictures.

    Raises `UsageError` if a field, its format or the suffix is none that there is.

    Args:
        output: a folder, a file's name, or a pattern with fields in braces; without a suffix it is a folder, and gets
            names such as `00001-42.png`.
        usual: names in a folder.
    """
    text = str(output)
    if not text.strip():
        raise UsageError("the output has no name; give a folder, or a file such as picture.png")
    path = Path(text)
    if _is_folder(path):
        # A folder that is there may have braces in its name.
        return NamePattern((tuple(_pieces(usual, text)),), path)
    suffix = path.suffix.lower() if path.name else ""
    if suffix in _OTHER_FORMATS:
        raise UsageError(f"output {text!r}: pictures are written as {', '.join(FORMATS)}, not {suffix}")
    if text.endswith(("/", "\\")) or (suffix not in FORMATS and "{" not in path.name):
        path = path / usual
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
    return f"{stem}_{dot}{rest}" if is_device(stem) else name
