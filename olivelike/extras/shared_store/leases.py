"""Leases on a shared store: who uses it now, and what was used when, told without trusting anybody's clock.

A run writes its lease as it begins, again every few minutes, and once more at its end. Moments are those at which the
other side says that a file was put; a lease tells only how many seconds before that its run began.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import UnreachableError
from olivelike.store.folder import is_digest, seal, unseal

if TYPE_CHECKING:
    from olivelike.extras.shared_store.remote_folder import RemoteFile, RemoteFolder

FOLDER: Final = "leases"
LIVE_SECONDS: Final = 900.0
"""Time for which a lease holds after it was written."""
_RENEWED_SECONDS: Final = 240.0
_KIND: Final = "lease/1"


@dataclass(frozen=True)
class Lease:
    """Message of a run about itself; moments are by the other side's clock."""

    began: float
    told: float
    """Moment of its last writing."""
    ended: bool
    keys: frozenset[str]
    """Results that it has used or made."""

    def is_live(self, now: float) -> bool:
        """Tell whether its run may still be at work."""
        return not self.ended and now - self.told < LIVE_SECONDS


class HeldLease:
    """The lease of a run of this process."""

    def __init__(self, folder: RemoteFolder, run_id: str) -> None:
        """Write nothing yet; `hold` does."""
        self._folder = folder
        self._path = f"{FOLDER}/{run_id}.json"
        self._start = time.monotonic()
        self._keys: set[str] = set()
        self._ended = threading.Event()

    def use(self, key: str) -> None:
        """Note that a result is used; it is told with the next renewal."""
        self._keys.add(key)

    def hold(self) -> None:
        """Write the lease, and keep it up from another thread."""
        self._write()
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def end(self) -> None:
        """Say that the run is over; what it has used remains told."""
        self._ended.set()
        self._write()

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED_SECONDS):
            with contextlib.suppress(UnreachableError):  # the next one may get through
                self._write()

    def _write(self) -> None:
        age = round(time.monotonic() - self._start, 3)
        keys = sorted(self._keys.copy())  # Other threads add to them.
        content = {"age_seconds": age, "ended": self._ended.is_set(), "keys": keys}
        self._folder.put(self._path, seal(_KIND, content))


def read_leases(folder: RemoteFolder) -> Iterator[tuple[RemoteFile, Lease | None]]:
    """Yield each lease with its file; a damaged one is `None`."""
    for file in folder.files(FOLDER):
        content = unseal(_KIND, folder.read(file.name))
        try:
            keys = frozenset(filter(is_digest, content["keys"])) if content else frozenset()
            began = file.modified - max(0.0, float(content["age_seconds"])) if content else 0.0
            yield file, Lease(began, file.modified, bool(content["ended"]), keys) if content else None
        except (KeyError, TypeError, ValueError):
            yield file, None


def remote_now(folder: RemoteFolder, run_id: str) -> float:
    """Return what time it is by the other side's clock, which takes writing a file."""
    path = f"{FOLDER}/{run_id}.clock"
    folder.put(path, b"")
    try:
        return folder.modified(path)
    finally:
        folder.remove([path])
