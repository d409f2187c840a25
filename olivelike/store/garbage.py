"""Freeing space: garbage collection under a cap, dropping single results, clearing all."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from olivelike.errors import StoreError
from olivelike.store.failures import explained
from olivelike.store.locks import drop_lock, held
from olivelike.store.reports import GcReport, StoreSize

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from olivelike.store.action import Action
    from olivelike.store.actions import Actions
    from olivelike.store.liveness import Claims
    from olivelike.store.publisher import Publisher
    from olivelike.store.roots import Roots
    from olivelike.store.runs import Runs

_QUARANTINE_SECONDS = 7 * 24 * 3600.0
_KEY_LOCK_SECONDS = 24 * 3600.0


class Garbage:
    """Removes what nobody needs; a record before its objects, so a crash leaves only unreferenced ones."""

    def __init__(
        self, publisher: Publisher, actions: Actions, roots: Roots, claims: Claims, runs: Runs
    ) -> None:
        self._publisher = publisher
        self._fs = publisher.fs
        self._layout = publisher.layout
        self._actions = actions
        self._roots = roots
        self._claims = claims
        self._runs = runs

    def collect(self, max_bytes: int, grace_seconds: float) -> GcReport:
        """Remove leftovers, then the least recently used results until the store fits."""
        self._publisher.check_writable()
        with explained(self._layout.root, "clean"), self._exclusively():
            before = self._size_beside_results()
            self._claims.sweep()
            self._roots.drop_dead()
            self._runs.drop_old()
            self._drop_key_locks()
            self._drop_quarantine(_QUARANTINE_SECONDS)
            beside = self._size_beside_results()
            # The results, which are most of a store, are walked through once.
            sweep = _Sweep(self._publisher, self._actions, self._roots, self._claims.others_since())
            results = sweep.size()
            before, after = before + results, beside + results
            after -= sweep.drop_unreferenced(time.time() - grace_seconds)
            if after > max_bytes:
                after -= self._drop_quarantine(0.0)
            for action, used in sweep.least_recently_used():
                if after <= max_bytes:
                    break
                if action.key not in sweep.keys and used < sweep.others_since:
                    after -= sweep.drop(action)
        return GcReport(before, after, max_bytes, sweep.actions_removed, sweep.objects_removed)

    def drop(self, keys: Iterable[str]) -> int:
        """Remove these actions, and those of their parts that nothing else needs; return the bytes freed."""
        self._publisher.check_writable()
        with explained(self._layout.root, "clean"):
            sweep = _Sweep(self._publisher, self._actions, self._roots, self._claims.others_since())
            freed = 0
            for key in keys:
                action = sweep.actions.get(key)
                if action is not None:
                    freed += sweep.drop(action)
                self._fs.remove(self._layout.action(key))  # a damaged record too
        return freed

    def clear(self) -> int:
        """Remove everything, pins and runs included; return the bytes freed.

        Raises:
            StoreError: if another process uses the store.
        """
        self._publisher.check_writable()
        with explained(self._layout.root, "clear"), self._exclusively():
            if others := self._claims.others():
                names = ", ".join(others)
                raise StoreError(
                    f"the store {self._layout.root} is in use ({names}): wait for those runs to end"
                )
            before = self.size().total
            self._claims.sweep()
            for name in ("actions", "objects", "runs", "logs", "roots", "quarantine", "index"):
                self._fs.remove(self._layout.folders[name])
            for name in self._fs.names(self._layout.key_locks):
                self._fs.remove(self._layout.key_locks / name)
            return before - self.size().total

    def size(self) -> StoreSize:
        """Return how much lies in each folder."""
        files = {name: self._fs.files(folder) for name, folder in self._layout.folders.items()}
        return StoreSize(
            bytes={name: sum(status.st_size for _, status in found) for name, found in files.items()},
            files={name: len(found) for name, found in files.items()},
        )

    def _size_beside_results(self) -> int:
        folders = [path for name, path in self._layout.folders.items() if name not in ("objects", "actions")]
        return sum(status.st_size for folder in folders for _, status in self._fs.files(folder))

    def _exclusively(self) -> contextlib.AbstractContextManager[None]:
        path = self._layout.lock("gc")
        self._fs.make_folder(path.parent)
        return held(path)

    def _drop_quarantine(self, older_than_seconds: float) -> int:
        freed = 0
        for path, status in self._fs.files(self._layout.quarantine):
            if status.st_ctime <= time.time() - older_than_seconds:
                self._fs.remove(path)
                freed += status.st_size
        return freed

    def _drop_key_locks(self) -> None:
        for path, status in self._fs.files(self._layout.key_locks):
            if status.st_mtime < time.time() - _KEY_LOCK_SECONDS:
                drop_lock(path, self._fs.remove)


class _Sweep:
    """What lies in the store at one moment, and what refers to it."""

    def __init__(self, publisher: Publisher, actions: Actions, roots: Roots, others_since: float) -> None:
        self._fs = publisher.fs
        self._layout = publisher.layout
        self.others_since = others_since
        """What was written or used after this may be in use by another process."""
        # In this order: an object that a later record refers to was written before that record.
        self._objects = dict(self._fs.files(publisher.layout.objects))
        self.actions = {action.key: action for action in actions.records()}
        self.keys, self._digests = roots.protected()
        self._counts = Counter(part for action in self.actions.values() for part in action.parts)
        self.actions_removed = 0
        self.objects_removed = 0

    def size(self) -> int:
        """Return the bytes of all results."""
        records = self._fs.files(self._layout.actions)
        return sum(status.st_size for _, status in (*self._objects.items(), *records))

    def least_recently_used(self) -> list[tuple[Action, float]]:
        """Return the actions with the time of their last use, oldest first."""
        used = [(action, self._used(action.key)) for action in self.actions.values()]
        return sorted(used, key=lambda pair: (pair[1], pair[0].key))

    def drop(self, action: Action) -> int:
        """Remove an action and the parts that only it needs; return the bytes freed."""
        record = self._layout.action(action.key)
        status = self._status(record)
        freed = status.st_size if status and self._remove(record) else 0
        self.actions_removed += 1
        del self.actions[action.key]
        self._counts.subtract(list(action.parts))
        for part in action.parts:
            path = self._layout.object(part)
            if (status := self._objects.get(path)) is not None and self._counts[part] <= 0:
                freed += self._drop_object(path, status, self.others_since)
        return freed

    def drop_unreferenced(self, older_than: float) -> int:
        """Remove old objects that no action has as a part, and old actions that lack one; return the bytes freed."""
        limit = min(older_than, self.others_since)
        freed = 0
        for action in list(self.actions.values()):
            incomplete = any(self._layout.object(part) not in self._objects for part in action.parts)
            if incomplete and self._used(action.key) < limit:
                freed += self.drop(action)
        for path, status in list(self._objects.items()):
            if self._counts[path.name] <= 0:
                freed += self._drop_object(path, status, limit)
        return freed

    def _drop_object(self, path: Path, status: os.stat_result, older_than: float) -> int:
        if path.name in self._digests:
            return 0
        with contextlib.suppress(OSError):
            status = self._fs.stat(path)  # it may have been put again since the listing
        if status.st_mtime >= older_than or not self._remove(path):
            return 0
        del self._objects[path]
        self.objects_removed += 1
        return status.st_size

    def _used(self, key: str) -> float:
        status = self._status(self._layout.action(key))
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
            if os.name == "nt":
                return False
            raise
        return True
