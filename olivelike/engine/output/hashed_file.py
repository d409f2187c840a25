"""A file that is hashed and written by a thread of its own, so that what comes next is computed meanwhile."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from pathlib import Path
from typing import Any, Self

_PENDING = 2
"""Pieces that may wait for the disk; each is held in memory until it is written."""
_SYNC_BYTES = 64 << 20
"""After so many bytes they go to the disk and leave the page cache, whose pages then serve the next ones."""


class HashedFile:
    """A context manager that writes one file; it is durable at the end."""

    def __init__(self, path: Path) -> None:
        """Make the file.

        Raises:
            OSError: if the disk refuses; also from `write` and the end, then or later.
        """
        self._file = path.open("wb", buffering=0)
        self._hasher = hashlib.sha256()
        self._pieces: queue.Queue[memoryview | None] = queue.Queue(_PENDING)
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
        self._pieces.put(memoryview(data))
        self.size += len(data)

    def facts(self) -> dict[str, Any]:
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
            if self._error is not None:
                continue  # Whoever writes must not wait for ever.
            try:
                self._hasher.update(piece)
                unsynced += len(piece)
                while piece:
                    piece = piece[self._file.write(piece) :]
                if unsynced > _SYNC_BYTES:
                    self._flush()
                    unsynced = 0
            except Exception as error:  # noqa: BLE001  (raised by `write`; a thread that ends leaves it waiting)
                self._error = error
