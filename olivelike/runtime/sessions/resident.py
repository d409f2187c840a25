"""Memory that this process holds and does not need for now."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MAPS: Final = Path("/proc/self/smaps")
"""Linux's list of what is mapped: a line of addresses, rights, offset, device, inode and path, then lines of facts."""
_FIELDS: Final = 6
_LEAST_BYTES: Final = 32 << 20


def give_back_pages(folder: Path) -> None:
    """Take pages of a folder's files, mapped by whom ever, out of this process's memory.

    Who reads them again gets them again, from the system's cache as a rule. What was written to stays. Does nothing
    where the system is not Linux, or files are so small that asking takes longer than it is worth.
    """
    if sys.platform != "linux":
        return
    try:
        if sum(file.stat().st_size for file in folder.iterdir()) < _LEAST_BYTES:
            return
    except OSError:  # It is gone, and what was mapped of it can't be had again by name.
        return
    madvise = ctypes.CDLL(None).madvise
    for start, end in _unchanged(f"{folder.resolve()}/"):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def _unchanged(beginning: str) -> Iterator[tuple[int, int]]:
    """Find where files are mapped whose paths begin so, and nothing was written to since."""
    try:
        lines = _MAPS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    place = None
    for line in lines:
        fields = line.split(maxsplit=_FIELDS - 1)
        if not fields[0].endswith(":"):
            place = None
            if len(fields) == _FIELDS and fields[-1].startswith(beginning):
                place = fields[0]
        elif place is not None and fields[:2] == ["Anonymous:", "0"]:
            start, end = (int(address, 16) for address in place.split("-"))
            yield start, end


def give_back_freed() -> None:
    """Give the system what the C library keeps of memory that was freed; does nothing where it has no way to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
