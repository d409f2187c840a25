"""The font of a sheet's words: Pillow's own, or one of the machine's with letters that it lacks."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL import ImageFont

    Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FILES: Final = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "arial.ttf", "Arial.ttf",
    "NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "NotoSansJP-Regular.ttf", "wqy-zenhei.ttc",
    "wqy-microhei.ttc", "DroidSansFallbackFull.ttf", "DroidSansFallback.ttf", "ipag.ttf", "msyh.ttc", "YuGothM.ttc",
    "msgothic.ttc", "Arial Unicode.ttf", "PingFang.ttc", "Hiragino Sans GB.ttc",
)  # fmt: skip
"""What Linux, Windows and macOS have, by the names that Pillow looks for in their folders."""
_NONE: Final = "\uffff"
"""No letter: what a font draws for it stands for each that it lacks."""
_MOST_LETTERS: Final = 5000
"""Letters of a sheet that are looked at."""
_ALIKE: Final = str.maketrans({"\u2013": "-", "\u2014": "-", "\u00d7": "x", "\u201e": '"'})


def font_for(texts: Iterable[str], points: int) -> tuple[Font, dict[int, str]]:
    """Return the first font that has all letters of some texts, else the one that has most, and others for the rest.

    What no font has is written without its accents, where that makes a letter that the font has.
    """
    from PIL import ImageFont

    own = ImageFont.load_default(points)
    if not isinstance(own, ImageFont.FreeTypeFont):  # Pillow without FreeType.
        return own, {}
    letters = frozenset("".join(texts)[:_MOST_LETTERS])
    best, absent = own, _absent(own, letters)
    for name in _FILES if absent else ():
        other = _of_machine(name, points)
        lacking = absent if other is None else _absent(other, letters)
        if other is not None and len(lacking) < len(absent):
            best, absent = other, lacking
        if not absent:
            break
    plain = {letter: _plain(letter) for letter in absent}
    drawn = {letter: text for letter, text in plain.items() if text and not _absent(best, frozenset(text))}
    return best, {ord(letter): text for letter, text in drawn.items()}


@cache
def _of_machine(name: str, points: int) -> ImageFont.FreeTypeFont | None:
    from PIL import ImageFont

    try:
        return ImageFont.truetype(name, points)
    except OSError:
        return None


def _absent(font: ImageFont.FreeTypeFont, letters: frozenset[str]) -> frozenset[str]:
    """Return the letters that a font draws as it draws what is none."""
    box = _drawn(font, _NONE)
    return frozenset(one for one in letters if not one.isspace() and _drawn(font, one) == box)


def _drawn(font: ImageFont.FreeTypeFont, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter)
    return mask.size, bytes(mask)


def _plain(letter: str) -> str:
    parts = unicodedata.normalize("NFKD", letter).translate(_ALIKE)
    return "".join(part for part in parts if not unicodedata.combining(part))
