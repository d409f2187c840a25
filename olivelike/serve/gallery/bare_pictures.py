"""Picture files without all that is no pixel, as copies of their bytes: nothing is decoded, and nothing encoded again.

JPEG segments: ITU-T T.81, annex B. PNG chunks: https://www.w3.org/TR/png-3/#5Chunk-layout.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PIXELS: Final = frozenset({b"IHDR", b"PLTE", b"tRNS"})
"""Chunks that say what the pixels in `IDAT` mean."""
_SOI, _EOI, _SOS = b"\xff\xd8", b"\xff\xd9", 0xDA
_TABLES: Final = frozenset({0xDB, 0xC4, 0xDD})
"""Segments of tables: quantisation, Huffman, restart intervals."""
_SEQUENTIAL: Final = frozenset({0xC0, 0xC1})
"""Frames whose pixels come in one scan, as a rule; others may have hundreds, each as long to decode."""
_JFIF, _ADOBE = 0xE0, 0xEE
"""Segments that say which colours the components are."""
_JFIF_BYTES: Final = 18
"""Of one without a thumbnail."""
_EXIF: Final = b"Exif\0\0"
_MARKER: Final = re.compile(rb"\xff[^\0\xd0-\xd7]", re.DOTALL)
"""Begin of a segment behind a scan, such as a comment's."""


def bare_picture(data: bytes, orientation: int, texts: Mapping[str, str] = MappingProxyType({})) -> bytes | None:
    """Return a picture's file with its pixels, its orientation, as EXIF counts it, and texts of a PNG that are given.

    `None` for one that may be slow to decode again, or has no place for that: it is to be encoded anew.
    """
    if data.startswith(_PNG):
        return _bare_png(data, orientation, texts)
    return _bare_jpeg(data, orientation) if data.startswith(_SOI) and not texts else None


def _exif(orientation: int) -> bytes:
    """Return EXIF of one entry: a TIFF header, and a directory with tag 0x0112."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def _bare_png(data: bytes, orientation: int, texts: Mapping[str, str]) -> bytes | None:
    before: dict[bytes, bytes] = {}
    pixels: list[bytes] = []
    place = len(_PNG)
    while place + 12 <= len(data):
        (length,), kind = struct.unpack_from(">I", data, place), data[place + 4 : place + 8]
        content = data[place + 8 : place + 8 + length]
        place += 12 + length
        if kind == b"IEND":
            if orientation > 1:
                before[b"eXIf"] = _exif(orientation)
            # Pixels in one piece: a file may have a million of them, which take seconds to read.
            said = [(b"iTXt", f"{name}\0\0\0\0\0{text}".encode()) for name, text in texts.items()]
            parts = [*before.items(), *said, (b"IDAT", b"".join(pixels)), (b"IEND", b"")]
            return _PNG + b"".join(_chunk(name, part) for name, part in parts)
        if kind == b"IDAT":
            pixels.append(content)
        elif kind in _PIXELS:
            if pixels or kind in before:
                return None
            before[kind] = content
    return None


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _bare_jpeg(data: bytes, orientation: int) -> bytes | None:
    kept = [_SOI]
    if orientation > 1:
        exif = _EXIF + _exif(orientation)
        kept.append(struct.pack(">BBH", 0xFF, 0xE1, len(exif) + 2) + exif)
    components = 0
    for marker, place, length in _segments(data):
        content = data[place : place + length]
        if marker == _SOS:
            end = data.find(_EOI, place)  # In a scan, 0xFF is followed by 0 or the number of a restart.
            whole = components and data[place + 4] == components  # All pixels come in the first scan.
            whole = whole and not _MARKER.search(data, place + length, end)
            return b"".join((*kept, data[place : end + 2])) if whole and end > 0 else None
        if marker in _SEQUENTIAL and not components and length > 9:
            components = content[9]
        elif marker == _JFIF and content[4:9] == b"JFIF\0" and length >= _JFIF_BYTES:
            content = struct.pack(">BBH", 0xFF, _JFIF, _JFIF_BYTES - 2) + content[4 : _JFIF_BYTES - 2] + b"\0\0"
        elif marker >= _JFIF and marker != _ADOBE:
            continue  # What programs say, and comments.
        elif marker not in _TABLES and marker != _ADOBE:
            return None  # A frame of another kind, or what has no place there.
        kept.append(content)
    return None


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the marker, place and bytes of each segment, the first scan's last."""
    place = len(_SOI)
    while place + 5 <= len(data) and data[place] == 0xFF:
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4]) + 2
        yield marker, place, length
        place += length
