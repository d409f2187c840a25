"""Freeing space: garbage collection under a cap, dropping single results, clearing all; checking every byte.

A record goes before its objects, so a crash leaves only unreferenced ones.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike import _files
from olivelike._files import drop_lock, held
from olivelike._text import byte_count
from olivelike.errors import StoreError
from olivelike.store import actions, objects, roots, runs
from olivelike.store.folder import FOLDERS, StoreFolder, explained, is_digest

if TYPE_CHECKING:
    import contextlib

    from olivelike.store.actions import Action

    Files = Mapping[Path, os.stat_result]

SIZE_VARIABLE = "OLIVELIKE_CACHE_SIZE"
DEFAULT_BYTES = 20 * 1000**3
_QUARANTINE_SECONDS = 7 * 24 * 3600.0
_KEY_LOCK_SECONDS = 24 * 3600.0
_OTHER_COLLECTION_SECONDS = 600.0
"""How long one collection waits for another to end."""


@dataclass(frozen=True)
class StoreSize:
    """Bytes and files of each folder at the store's top."""

    bytes: dict[str, int]
    files: dict[str, int]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.bytes.values())


@dataclass(frozen=True)
class GcReport:
    """Counts of what garbage collection removed and left, without what dead processes had left."""

    bytes_before: int
    bytes_after: int
    max_bytes: int
    actions_removed: int
    objects_removed: int

    @property
    def bytes_freed(self) -> int:
        """How much smaller the store became."""
        return self.bytes_before - self.bytes_after


def size_limit() -> int:
    """Return the cap in bytes: `$OLIVELIKE_CACHE_SIZE`, else 20 GB.

    Raises `UsageError` if the variable holds no size.
    """
    text = os.environ.get(SIZE_VARIABLE, "").strip()
    return byte_count(text, SIZE_VARIABLE) if text else DEFAULT_BYTES


def collect(folder: StoreFolder, max_bytes: int, grace_seconds: float) -> GcReport:
    """Remove leftovers, then the least recently used results until the store fits.

    All of the store is walked through once; what goes is taken off.
    """
    folder.check_writable()
    with explained(folder.root, "clean"), _exclusively(folder):
        folder.claims.sweep()
        roots.drop_dead(folder)
        runs.drop_old(folder)
        files = _walk(folder)
        for path, status in files["locks"].items():
            if path.parent == folder.key_locks and status.st_mtime < time.time() - _KEY_LOCK_SECONDS:
                drop_lock(path, folder.fs)
        before = after = sum(_bytes(found) for found in files.values())
        week_ago = time.time() - _QUARANTINE_SECONDS
        after -= _drop(folder, files["quarantine"], week_ago)
        sweep = _Sweep(folder, files["objects"], files["actions"])
        after -= sweep.drop_unreferenced(time.time() - grace_seconds)
        if after > max_bytes:
            rest = {path: status for path, status in files["quarantine"].items() if status.st_ctime > week_ago}
            after -= _drop(folder, rest, time.time())
        for action, used in sweep.least_recently_used():
            if after <= max_bytes:
                break
            if action.key not in sweep.keys and used < sweep.others_since:
                after -= sweep.drop(action)
    return GcReport(before, after, max_bytes, sweep.actions_removed, sweep.objects_removed)


def drop(folder: StoreFolder, keys: Iterable[str]) -> int:
    """Remove these actions, and those of their parts that nothing else needs; return the bytes freed."""
    folder.check_writable()
    with explained(folder.root, "clean"):
        objects = dict(folder.fs.files(folder.objects))
        sweep = _Sweep(folder, objects, dict(folder.fs.files(folder.actions)))
        freed = 0
        for key in keys:
            action = sweep.actions.get(key)
            if action is not None:
                freed += sweep.drop(action)
            folder.fs.remove(folder.action(key))  # a damaged record too
    return freed


def clear(folder: StoreFolder) -> int:
    """Remove everything, pins and runs included; return the bytes freed.

    Raises `StoreError` if another process uses the store.
    """
    folder.check_writable()
    with explained(folder.root, "clear"), _exclusively(folder):
        if others := folder.claims.others():
            names = ", ".join(others)
            raise StoreError(f"the store {folder.root} is in use ({names}): wait for those runs to end")
        before = size(folder).total
        folder.claims.sweep()
        for name in FOLDERS:
            if name not in ("tmp", "locks"):  # of which this process has some
                folder.fs.remove(folder.root / name)
        for name in folder.names(folder.key_locks):
            folder.fs.remove(folder.key_locks / name)
        return before - size(folder).total


def size(folder: StoreFolder) -> StoreSize:
    """Return how much lies in each folder."""
    files = _walk(folder)
    return StoreSize(
        bytes={name: _bytes(found) for name, found in files.items()},
        files={name: len(found) for name, found in files.items()},
    )


def _walk(folder: StoreFolder) -> dict[str, dict[Path, os.stat_result]]:
    # Objects first: one that a later record refers to was written before that record.
    return {name: dict(folder.fs.files(folder.root / name)) for name in FOLDERS}


def _bytes(files: Files) -> int:
    return sum(status.st_size for status in files.values())


def _exclusively(folder: StoreFolder) -> contextlib.AbstractContextManager[None]:
    return held(folder.lock_path("gc"), timeout=_OTHER_COLLECTION_SECONDS)


def _drop(folder: StoreFolder, files: Files, changed_before: float) -> int:
    """Remove those of some files that last changed before a time; return the bytes freed."""
    old = {path: status for path, status in files.items() if status.st_ctime <= changed_before}
    for path in old:
        folder.fs.remove(path)
    return _bytes(old)


class _Sweep:
    """Files of the store at one moment, and what refers to them."""

    def __init__(self, folder: StoreFolder, objects: dict[Path, os.stat_result], records: Files) -> None:
        self._folder = folder
        self._fs = folder.fs
        self._objects = objects
        self.others_since = folder.claims.others_since()
        """Time after which whatever was written or used may be in use by another process."""
        self.actions = {action.key: action for action in actions.readable(folder, sorted(records))}
        self.keys, self._digests = roots.protected(folder)
        self._counts = Counter(part for action in self.actions.values() for part in action.parts)
        self.actions_removed = 0
        self.objects_removed = 0

    def least_recently_used(self) -> list[tuple[Action, float]]:
        """Return the actions with the time of their last use, oldest first."""
        used = [(action, self._used(action.key)) for action in self.actions.values()]
        return sorted(used, key=lambda pair: (pair[1], pair[0].key))

    def drop(self, action: Action) -> int:
        """Remove an action and the parts that only it needs; return the bytes freed."""
        record = self._folder.action(action.key)
        status = self._status(record)
        freed = status.st_size if status and self._remove(record) else 0
        self.actions_removed += 1
        del self.actions[action.key]
        self._counts.subtract(list(action.parts))
        for part in action.parts:
            path = self._folder.object(part)
            if (found := self._objects.get(path)) is not None and self._counts[part] <= 0:
                freed += self._drop_object(path, found, self.others_since)
        return freed

    def drop_unreferenced(self, older_than: float) -> int:
        """Remove old objects that no action has as a part, and old actions that lack one; return the bytes freed."""
        limit = min(older_than, self.others_since)
        freed = 0
        for action in list(self.actions.values()):
            incomplete = any(self._folder.object(part) not in self._objects for part in action.parts)
            if incomplete and self._used(action.key) < limit:
                freed += self.drop(action)
        for path, status in list(self._objects.items()):
            if self._counts[path.name] <= 0:
                freed += self._drop_object(path, status, limit)
        return freed

    def _drop_object(self, path: Path, status: os.stat_result, older_than: float) -> int:
        if path.name in self._digests:
            return 0
        status = self._status(path) or status  # it may have been put again since the listing
        if status.st_mtime >= older_than or not self._remove(path):
            return 0
        del self._objects[path]
        self.objects_removed += 1
        return status.st_size

    def _used(self, key: str) -> float:
        status = self._status(self._folder.action(key))
        return status.st_mtime if status else 0.0

    def _status(self, path: Path) -> os.stat_result | None:
        try:
            return self._fs.stat(path)
        except FileNotFoundError:
            return None

    def _remove(self, path: Path) -> bool:
        try:
            self._fs.remove(path)
        except PermissionError:
            # Windows refuses while a reader has the file mapped: the next collection gets it.
            if _files.WINDOWS:
                return False
            raise
        return True


@dataclass(frozen=True)
class Problem:
    """One entry that is not as it should be."""

    path: Path
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """Counts of what `verify` read and found."""

    objects: int
    bytes: int
    actions: int
    problems: list[Problem] = field(default_factory=list)
    repaired: bool = False
    """Whether each problem was moved to quarantine or removed; what needs it is then remade."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify(folder: StoreFolder, *, repair: bool, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Read everything; if `repair`, move what is wrong to quarantine."""
    if repair:
        folder.check_writable()
    files = sorted(folder.fs.files(folder.objects))
    total, done = sum(status.st_size for _, status in files), 0
    problems: list[Problem] = []

    def report(path: Path, reason: str | None) -> None:
        if reason is not None:
            problems.append(Problem(path, reason))
            if repair:
                folder.set_aside(path)

    for path, status in files:
        report(path, _wrong_object(folder, path))
        done += status.st_size
        if progress is not None:
            progress(done, total)
    damaged = {problem.path for problem in problems}
    records = list(actions.paths(folder))
    for path in records:
        report(path, _wrong_action(folder, path, damaged))
    for path in _unreadable(folder):
        report(path, "is damaged")
    return VerifyReport(len(files), total, len(records), problems, repair and bool(problems))


def _wrong_object(folder: StoreFolder, path: Path) -> str | None:
    if not is_digest(path.name) or folder.object(path.name) != path:
        return "is no object"
    whole = objects.is_whole(folder, path.name) or not path.exists()
    return None if whole else "does not match its hash"


def _wrong_action(folder: StoreFolder, path: Path, damaged: set[Path]) -> str | None:
    action = actions.parse(folder, path, folder.read(path))
    if action is None:
        return "is damaged" if path.exists() else None
    missing = actions.missing_part(folder, action)
    missing = missing or next((part for part in action.parts if folder.object(part) in damaged), None)
    return missing and f"needs the object {missing}, which is missing or damaged"


def _unreadable(folder: StoreFolder) -> Iterator[Path]:
    """Yield the run records and pins that are there and can't be read."""
    for path in runs.paths(folder):
        if runs.read(folder, path) is None and path.exists():
            yield path
    for path in roots.pin_paths(folder):
        if roots.read_pin(folder, path) is None and path.exists():
            yield path
