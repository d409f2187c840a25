"""Names of picture files: patterns such as `out/{date}/{index:05}-{prompt}.png`."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Final

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.runtime.pictures.encoding import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_NAME: Final = "{index:05}-{seed}.png"
NUMBERS: Final = ("index", "seed", "steps", "width", "height")
TEXTS: Final = ("prompt", "folder", "scheduler", "date", "time")

_OTHER_FORMATS = frozenset({".avif", ".bmp", ".gif", ".heic", ".ico", ".jxl", ".tif", ".tiff"})
_NUMBER_FORMAT = re.compile(r"0?\d{0,2}")
_LONGEST = 60
_LONGEST_BYTES = 120
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
)
"""Names that Windows keeps for devices, whatever the suffix."""

Piece = tuple[str, str | None, str]
"""Literal text, then a field with its format."""


@dataclass(frozen=True)
class NamePattern:
    """Where pictures go."""

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

    Args:
        output: a folder, a file's name, or a pattern with fields in braces; without a suffix it is a folder, and gets
            names such as `00001-42.png`.

    Raises:
        UsageError: if a field, its format or the suffix is none that there is.
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
            raise UsageError(
                f"output {output!r}: {{{name}:{form}}}: only numbers take a width, such as {{index:05}}"
            )
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
