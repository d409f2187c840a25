"""Where the entries of a pickled file, a zip archive, lie in it as they are."""

from __future__ import annotations

import struct
import zipfile
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from olivelike.errors import SourceError
from olivelike.sources.files.safetensors_header import DOWNLOAD_AGAIN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LOCAL_HEADER, _LENGTHS_AT = 30, 26
"""Bytes of a local file header before its name, and where in it the lengths of name and extra field are."""
_WORD = 16
"""No entry `byteorder` is longer; another one is not read."""
SAVE_AGAIN = "load it with torch once and save it as safetensors"


class Entry(NamedTuple):
    """One entry: its bytes are `start` up to `end` of the file."""

    start: int
    end: int
    name: str
    is_stored: bool
    """False if it is compressed, so that the file does not hold what it stands for."""


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of an archive in order of place; none if the file is no archive.

    Raises:
        SourceError: if it is damaged, or its numbers are big-endian.
    """
    if not zipfile.is_zipfile(path):
        return []
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            entries = []
            for info in archive.infolist():
                file.seek(info.header_offset + _LENGTHS_AT)
                start = info.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", file.read(4)))
                is_stored = info.compress_type == zipfile.ZIP_STORED
                entries.append(Entry(start, start + info.compress_size, info.filename, is_stored))
            order = [info for info in archive.infolist() if info.filename.rpartition("/")[2] == "byteorder"]
            if order and order[0].file_size <= _WORD and archive.read(order[0]).strip() == b"big":
                raise SourceError(f"{path}: its numbers are big-endian; {SAVE_AGAIN}")
    except (zipfile.BadZipFile, struct.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise SourceError(f"{path}: is a damaged zip archive: {error}; {DOWNLOAD_AGAIN}") from error
    return sorted(entries)


def check_span(path: Path, name: str, entries: Sequence[Entry], start: int, size: int) -> None:
    """Check that a tensor's bytes are inside one entry, and are there as they are.

    Raises:
        SourceError: if not.
    """
    position = bisect_right(entries, start, key=lambda entry: entry.start) - 1
    entry = entries[position] if position >= 0 else None
    if entry is not None and start < entry.end and not entry.is_stored:
        raise SourceError(
            f"{path}: {name} is compressed in it ({entry.name}), as torch never saves; {SAVE_AGAIN}"
        )
    if size and (entry is None or start + size > entry.end):
        raise SourceError(
            f"{path}: the bytes of {name} are not inside the archive's entries; {DOWNLOAD_AGAIN}"
        )
