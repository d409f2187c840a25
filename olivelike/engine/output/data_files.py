"""Data files in the making: weights at aligned offsets, in as many files as their size asks for.

`HashedFile` hashes and writes in a thread of its own, so that what comes next is computed meanwhile.
"""

from __future__ import annotations

import hashlib
import math
import os
import queue
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from olivelike._untrusted import Json

ALIGNMENT = 4096
"""Offsets in a data file are multiples of this, so that runtimes can map single tensors."""


@dataclass(frozen=True)
class Place:
    """File, offset and length of a tensor."""

    file: str
    offset: int
    nbytes: int


class DataFiles:
    """A context manager that writes tensors one after the other; without one there is no file."""

    def __init__(self, folder: Path, name: str, most_bytes: int | None) -> None:
        """Write into a folder that exists, to a file of this name and of this size at most.

        Further files are called `weights.1.pb`, if the first is `weights.pb`. A tensor larger than that has its own.
        """
        self._folder, self._name, self._most_bytes = folder, name, most_bytes
        self._facts: dict[str, Json] = {}
        self._file: HashedFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._end(kind)

    def begin(self, nbytes: int) -> Place:
        """Return where a tensor of this size goes; `write` takes its bytes from now on."""
        if self._file is not None and _aligned(self._file.size) + nbytes > (self._most_bytes or math.inf):
            self._end(None)
        if self._file is None:
            self._file = HashedFile(self._folder / self._next_name())
        self._file.write(bytes(_aligned(self._file.size) - self._file.size))
        return Place(self._file.path.name, self._file.size, nbytes)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, which nobody may change afterwards."""
        assert self._file is not None
        self._file.write(data)

    def facts(self) -> dict[str, Json]:
        """Return size in bytes and SHA-256 of each finished file, by name."""
        return self._facts

    def _next_name(self) -> str:
        stem, _, suffix = self._name.rpartition(".")
        return f"{stem}.{len(self._facts)}.{suffix}" if self._facts else self._name

    def _end(self, error: object) -> None:
        """Close the file at which writing is; it need not become durable after an error."""
        if self._file is not None:
            file, self._file = self._file, None
            file.__exit__(error)
            self._facts[file.path.name] = file.facts()


def _aligned(offset: int) -> int:
    return offset + -offset % ALIGNMENT


_HELD_BYTES = 16 << 20
"""Most bytes that wait for the disk, in memory, unless a single piece has more."""
_SYNC_BYTES = 64 << 20
"""After so many bytes they go to the disk and leave the page cache, whose pages then serve the next ones."""


class HashedFile:
    """A context manager that writes one file; it is durable at the end."""

    def __init__(self, path: Path) -> None:
        """Make the file. Raises `OSError` if the disk refuses; also from `write` and the end, then or later."""
        self.path = path
        self._file = path.open("wb", buffering=0)
        self._hasher = hashlib.sha256()
        self._pieces: queue.Queue[memoryview | None] = queue.Queue()
        self._room, self._held = threading.Condition(), 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with self._file:
            self._pieces.put(None)
            self._thread.join()
            if kind is None:
                self._raise()
                os.fsync(self._file.fileno())

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, which nobody may change afterwards."""
        self._raise()
        with self._room:
            self._room.wait_for(lambda: not self._held or self._held + len(data) <= _HELD_BYTES)
            self._held += len(data)
        self._pieces.put(memoryview(data))
        self.size += len(data)

    def facts(self) -> Json:
        """Return size in bytes and SHA-256 of the finished file."""
        return {"size": self.size, "sha256": self._hasher.hexdigest()}

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _flush(self) -> None:
        os.fsync(self._file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _work(self) -> None:
        unsynced = 0
        while (piece := self._pieces.get()) is not None:
            size = len(piece)
            try:
                if self._error is None:
                    self._hasher.update(piece)
                    unsynced += size
                    while piece:
                        piece = piece[self._file.write(piece) :]
                    if unsynced > _SYNC_BYTES:
                        self._flush()
                        unsynced = 0
            except Exception as error:  # noqa: BLE001  (raised by `write`; a thread that ends leaves it waiting)
                self._error = error
            with self._room:  # Also behind an error: whoever writes must not wait for ever.
                self._held -= size
                self._room.notify()
