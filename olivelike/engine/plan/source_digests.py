"""Digests of source files: computed on demand, or in the background while nodes run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class FileDigests(Mapping[Path, str]):
    """A map from path to SHA-256, filled as it is asked for."""

    def __init__(self, digest: Callable[[Path], str]) -> None:
        """Fill the map with `digest`, which may run in several threads at once."""
        self._digest = digest
        self._futures: dict[Path, Future[str]] = {}
        self.stamps: dict[Path, list[int]] = {}
        """Size in bytes and time in nanoseconds of each file just before it was hashed."""

    def __getitem__(self, path: Path) -> str:
        """Return a file's digest; waits for it if it is being computed.

        Raises:
            SourceError: if the file can't be read.
        """
        if path not in self._futures:
            self._futures[path] = Future()
            self._compute(path)
        return self._futures[path].result()

    def __iter__(self) -> Iterator[Path]:
        return iter(self._futures)

    def __len__(self) -> int:
        return len(self._futures)

    def is_ready(self, path: Path) -> bool:
        """Tell whether nobody needs to wait for a file's digest: it is known, or was not asked for."""
        return path not in self._futures or self._futures[path].done()

    def prefetch(self, paths: Iterable[Path]) -> None:
        """Compute the digests of `paths` in the background, one after another, the largest file first.

        What waits for the largest file takes longest, and two readers would halve the disk's speed for it.
        """
        sizes = {path: path.stat().st_size for path in set(paths) - self._futures.keys() if path.exists()}
        ordered = sorted(sizes, key=lambda path: -sizes[path])
        self._futures.update((path, Future()) for path in ordered)
        # A daemon: an interrupted run does not wait for gigabytes to be hashed.
        threading.Thread(target=self._compute_all, args=(ordered,), daemon=True).start()

    def _compute_all(self, paths: list[Path]) -> None:
        for path in paths:
            self._compute(path)

    def _compute(self, path: Path) -> None:
        future = self._futures[path]
        try:
            status = path.stat()
            self.stamps[path] = [status.st_size, status.st_mtime_ns]
            future.set_result(self._digest(path))
        except Exception as error:  # noqa: BLE001  (raised again where the digest is asked for)
            future.set_exception(error)
