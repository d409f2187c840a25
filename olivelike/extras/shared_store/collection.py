"""Freeing space of a shared store, and checking it; a record goes before its objects."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.extras.shared_store.leases import read_leases, remote_now
from olivelike.extras.shared_store.pins import read_pins
from olivelike.extras.shared_store.record_signatures import SIGNERS, RecordSignatures, decoded
from olivelike.store.folder import is_digest
from olivelike.store.runs import new_run_id

if TYPE_CHECKING:
    from olivelike.extras.shared_store.remote_folder import RemoteFile, RemoteFolder
    from olivelike.extras.shared_store.shared_store import SharedStore
    from olivelike.store.actions import Action

GRACE_SECONDS: Final = 24 * 3600.0
"""Time for which files that nothing needs are left alone: somebody may be about to record it."""
_LEASE_SECONDS: Final = 400 * 24 * 3600.0
"""Time for which an ended lease is kept for what it tells of use."""
_AT_ONCE: Final = 16


@dataclass(frozen=True)
class SharedSize:
    """Content of a shared store, counted."""

    results: int
    objects: int
    bytes: int


@dataclass(frozen=True)
class SharedGcReport:
    """Result of a collection: what it removed and left."""

    bytes_before: int
    bytes_after: int
    results_removed: int
    objects_removed: int
    live_runs: int
    """Number of runs that were at work meanwhile."""


@dataclass(frozen=True)
class SharedVerifyReport:
    """Result of reading everything."""

    objects: int
    bytes: int
    problems: dict[str, str] = field(default_factory=dict)
    """Damage by path, in words."""


def measure(shared: SharedStore) -> SharedSize:
    """Return how much there is, from listings alone."""
    objects = list(shared.folder.files("objects"))
    records = list(shared.folder.files("actions"))
    return SharedSize(len(records), len(objects), sum(file.bytes for file in (*objects, *records)))


def collect(
    shared: SharedStore, *, max_bytes: int | None, older_than: float | None, grace_seconds: float = GRACE_SECONDS
) -> SharedGcReport:
    """Remove what nothing needs, then results that were not used for long, then the least recently used.

    Results that live runs have used or made stay, those that a pin names, and what was put since the oldest of those
    runs began. Raises `UnreachableError` if the other side fails; what was removed until then was removed whole. Raises
    `StoreError` if a pin is damaged; nothing was removed then.

    Args:
        shared: One that may be written.
        max_bytes: The cap, or none.
        older_than: Seconds without use after which a result goes, or never.
        grace_seconds: How long objects that nothing needs are left alone.
    """
    collection = _Collection(shared.folder, remote_now(shared.folder, new_run_id()))
    collection.take_leftovers(grace_seconds)
    results = collection.take_results(max_bytes, older_than)
    before, after = collection.before, collection.after
    return SharedGcReport(before, after, results, collection.remove(), len(collection.live))


class _Collection:
    """State of a shared store at one moment: its files, what refers to them, and which of them are to go."""

    def __init__(self, folder: RemoteFolder, now: float) -> None:
        self._folder, self._now = folder, now
        # Objects first: one that a later record refers to was put before that record.
        self._objects = {Path(file.name).name: file for file in folder.files("objects")}
        records = [(file, action) for file, action, _ in _read_records(folder)]
        self._leases = list(read_leases(folder))
        known = [lease for _, lease in self._leases if lease is not None]
        self.live = [lease for lease in known if lease.is_live(now)]
        self._since = min((lease.began for lease in self.live), default=now)
        """Moment since which files that were put or used may be about to be used."""
        self._protected = {key for lease in self.live for key in lease.keys}
        self._protected |= {key for keys in read_pins(folder).values() for key in keys}
        self._used: dict[str, float] = {}
        for lease in known:
            self._used |= {key: max(self._used.get(key, 0.0), lease.told) for key in lease.keys}
        self._damaged = [file for file, action in records if action is None]
        self._results = {action.key: (file, action) for file, action in records if action is not None}
        self._counts = Counter(part for _, action in self._results.values() for part in action.parts)
        self._gone_records: list[RemoteFile] = []
        self._gone_objects: list[RemoteFile] = []
        self.before = sum(file.bytes for file in (*self._objects.values(), *(file for file, _ in records)))

    @property
    def after(self) -> int:
        """Bytes that will be left."""
        return self.before - sum(file.bytes for file in (*self._gone_records, *self._gone_objects))

    def take_leftovers(self, grace_seconds: float) -> None:
        """Take what is damaged, and old objects that no result needs."""
        old = min(self._since, self._now - grace_seconds)
        self._gone_records += [file for file in self._damaged if file.modified < old]
        unneeded = (file for digest, file in self._objects.items() if not self._counts[digest])
        self._gone_objects += [file for file in unneeded if file.modified < old]

    def take_results(self, max_bytes: int | None, older_than: float | None) -> int:
        """Take results that were not used for so long, then others until the rest fits; return how many."""
        taken, left = 0, self.after
        for used, key in sorted((self._last_use(key), key) for key in self._results):
            too_old = older_than is not None and self._now - used > older_than
            too_much = max_bytes is not None and left > max_bytes
            if (too_old or too_much) and key not in self._protected and used < self._since:
                left -= self._take(key)
                taken += 1
        return taken

    def remove(self) -> int:
        """Remove what was taken, and leases of old; return how many objects went."""
        old = [file for file, lease in self._leases if lease is None or self._now - lease.told > _LEASE_SECONDS]
        self._folder.remove([file.name for file in (*self._gone_records, *old)])
        self._folder.remove([file.name for file in self._gone_objects])
        return len(self._gone_objects)

    def _take(self, key: str) -> int:
        file, action = self._results[key]
        self._counts.subtract(list(action.parts))
        gone = [self._objects[part] for part in action.parts if not self._counts[part] and part in self._objects]
        self._gone_records.append(file)
        self._gone_objects += gone
        return sum(one.bytes for one in (file, *gone))

    def _last_use(self, key: str) -> float:
        return max(self._results[key][0].modified, self._used.get(key, 0.0))


def verify(
    shared: SharedStore, *, repair: bool, progress: Callable[[int, int], None] | None = None
) -> SharedVerifyReport:
    """Read every byte, compare with its digest, and check signatures that are asked for.

    With `repair`, what is wrong is removed.
    """
    folder = shared.folder
    objects = list(folder.files("objects"))
    total, done = sum(file.bytes for file in objects), 0
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="olivelike-") as temporary:
        for file in objects:
            name, path = Path(file.name).name, Path(temporary, "object")
            if not is_digest(name):
                problems[file.name] = "is no object"
            elif folder.download(file.name, path, file.bytes):
                with path.open("rb") as opened:
                    if hashlib.file_digest(opened, "sha256").hexdigest() != name:
                        problems[file.name] = "does not match its hash"
                path.unlink()
            done += file.bytes
            if progress is not None:
                progress(done, total)
    sizes = {Path(file.name).name: file.bytes for file in objects if file.name not in problems}
    for file, action, flaw in _read_records(folder, shared.signatures):
        if action is None:
            problems[file.name] = "is damaged"
        elif flaw is not None:
            problems[file.name] = f"is not taken (${SIGNERS}): {flaw}"
        elif lacks := next((part for part, size in action.parts.items() if sizes.get(part) != size), None):
            problems[file.name] = f"needs the object {lacks}, which is missing or damaged"
    if repair and problems:
        # Records before their objects.
        folder.remove(sorted(problems, key=lambda path: not path.startswith("actions")))
    return SharedVerifyReport(len(objects), total, problems)


def _read_records(
    folder: RemoteFolder, signatures: RecordSignatures | None = None
) -> list[tuple[RemoteFile, Action | None, str | None]]:
    """Return each record's file, what it holds, and why its signature does not do, as far as one is asked for."""

    def read(file: RemoteFile) -> tuple[RemoteFile, Action | None, str | None]:
        data = folder.read(file.name)
        flaw = signatures.flaw(data) if signatures is not None and data is not None else None
        return file, decoded(data, Path(file.name).stem), flaw

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(read, folder.files("actions")))
