"""Memory that this process holds and does not need for now."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MAPS: Final = Path("/proc/self/smaps")
"""Linux's list of what is mapped: a line of addresses, rights, offset, device, inode and path, then lines of facts."""
_FIELDS: Final = 6
_PRIVATE: Final = "rw-p"
"""Rights of what ONNX Runtime maps, and Python does not unless it is asked to."""
_LEAST_BYTES: Final = 32 << 20


class MappedFiles:
    """Addresses where one session has files mapped, for as long as it is open."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        """Addresses, the end not among them."""

    def give_back(self) -> None:
        """Take the pages out of this process's memory.

        Who reads them again gets them again, from the system's cache as a rule. To be called only while the session is
        open: afterwards something else may be there.
        """
        if self.ranges:
            madvise = ctypes.CDLL(None).madvise
            for start, end in self.ranges:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


_LOCK: Final = threading.Lock()
_BEGUN: Final[Counter[Path]] = Counter()
_OPEN: Final[Counter[Path]] = Counter()


@contextmanager
def mapped_files(folder: Path) -> Iterator[MappedFiles]:
    """Yield what knows at the end which files of a folder were mapped in here, and stay so.

    It knows of none where another thread opens a network of the same folder meanwhile, since either could close it;
    nor where the system is not Linux, where files are small, or of those that were written to.
    """
    found = MappedFiles()
    if not _is_worth_it(folder):
        yield found
        return
    folder = folder.resolve()
    with _LOCK:
        _BEGUN[folder] += 1
        _OPEN[folder] += 1
        number, alone = _BEGUN[folder], _OPEN[folder] == 1
    try:
        before = [place for place, _ in _mapped(folder)]
        yield found
        with _LOCK:
            alone = alone and _BEGUN[folder] == number
        if alone:
            found.ranges = [
                (start, end)
                for (start, end), unchanged in _mapped(folder)
                if unchanged and all(end <= first or last <= start for first, last in before)
            ]
    finally:
        with _LOCK:
            _OPEN[folder] -= 1


def _is_worth_it(folder: Path) -> bool:
    try:
        return sys.platform == "linux" and sum(one.stat().st_size for one in folder.iterdir()) >= _LEAST_BYTES
    except OSError:
        return False


def _mapped(folder: Path) -> Iterator[tuple[tuple[int, int], bool]]:
    """Yield where files of a folder are mapped, and whether nothing was written there."""
    try:
        lines = _MAPS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    place = None
    for line in lines:
        fields = line.split(maxsplit=_FIELDS - 1)
        if not fields[0].endswith(":"):
            ours = len(fields) == _FIELDS and fields[-1].startswith(f"{folder}/") and fields[1] == _PRIVATE
            place = fields[0] if ours else None
        elif place is not None and fields[0] == "Anonymous:":
            start, end = (int(address, 16) for address in place.split("-"))
            yield (start, end), fields[1] == "0"


def give_back_freed() -> None:
    """Give the system what the C library keeps of memory that was freed; does nothing where it has no way to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
