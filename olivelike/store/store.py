"""The store as the engine sees it; each kind of entry has its own module."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._files import FileSystem, Lock, held, try_lock
from olivelike.store import actions, roots, runs
from olivelike.store.folder import StoreFolder, explained, seal
from olivelike.store.objects import Objects

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.store.actions import Action
    from olivelike.store.index import Index
    from olivelike.store.upkeep import GcReport, StoreSize, VerifyReport

_GRACE_SECONDS = 3600.0


@dataclass(frozen=True)
class Entry:
    """One action with what it occupies, for listings."""

    action: Action
    bytes: int
    """Sum of its parts; parts that other actions share count here too."""
    last_used: float
    """Seconds since the epoch."""
    protected: bool
    """Whether a live run or a pin keeps it from garbage collection."""


class Store(Objects):
    """A folder of results; any number of processes and threads may use it at once.

    Damage of any kind gives a miss, never a wrong result. Every method that writes raises `StoreError` if
    the disk refuses, and then leaves nothing behind.
    """

    def __init__(self, folder: StoreFolder) -> None:
        """Use `open`, which also prepares the folder."""
        super().__init__(folder)
        self.root = folder.root

    @classmethod
    def open(cls, root: str | Path, *, create: bool = True, filesystem: FileSystem | None = None) -> Store:
        """Open the store in the folder `root`. Raises `StoreError` if the folder can't be created or read.

        Args:
            root: the store's folder.
            create: create it if needed, and remove what dead processes left. Without it, or where the disk is
                read-only, nothing is ever changed: an absent store is an empty one, and writing raises
                `StoreError`.
            filesystem: the file operations; tests give one that fails.
        """
        filesystem = filesystem or FileSystem()
        root = Path(root).absolute()
        if create:
            with explained(root, "create"):
                filesystem.make_folder(root)
                create = filesystem.may_write(root)
        store = cls(StoreFolder(root, filesystem, writable=create))
        if store.writable:
            store.sweep()
        return store

    def sweep(self) -> None:
        """Remove the temporary files of dead processes, such as a worker that was just killed."""
        with contextlib.suppress(OSError):  # a store on a read-only disk still serves its results
            self._folder.claims.sweep()

    @property
    def writable(self) -> bool:
        """Whether this store may be written: false if opened with `create=False`, or on a read-only disk."""
        return self._folder.writable

    # Actions

    def get_action(self, key: str) -> Action | None:
        """Return the action; `None` if its record is absent or damaged, or a part is missing."""
        action = actions.recorded(self._folder, key)
        if action is None or actions.missing_part(self._folder, action) is not None:
            return None
        if self.writable:
            with contextlib.suppress(OSError):  # the time of use only decides what is collected first
                self._folder.fs.touch(self._folder.action(key))
        return action

    def put_action(self, action: Action) -> None:
        """Record a result, after all of its parts were put.

        Raises `ValueError` if an output is not among the parts, `DamagedError` if a part is missing: the store was
        cleared or collected meanwhile, and `StoreError` if the disk refuses.
        """
        actions.put(self._folder, action)

    def drop_action(self, *keys: str) -> int:
        """Remove actions and the parts that nothing else needs; return the bytes freed."""
        from olivelike.store import upkeep

        return upkeep.drop(self._folder, keys)

    def actions(self) -> Iterator[Action]:
        """Yield every action that is recorded, by key."""
        return actions.readable(self._folder, actions.paths(self._folder))

    def lock(self, key: str, on_wait: Callable[[], None] | None = None) -> contextlib.AbstractContextManager[None]:
        """Hold the lock on a key, across processes; it dies with the process.

        It spares double work; correctness never rests on it. Who holds it works on the same key, so the wait ends
        with that work. `on_wait` is called once if another holder has it; raising from it gives up.
        """
        return _holding(self._key_lock(key), on_wait)

    def try_lock(self, key: str) -> Lock | None:
        """Take the lock on a key, or return `None` at once if another holder has it."""
        path = self._key_lock(key)
        with explained(path):
            return try_lock(path)

    def _key_lock(self, key: str) -> Path:
        path = self._folder.key_lock(key)
        self._folder.check_writable()
        with explained(path):
            self._folder.fs.make_folder(path.parent)
        return path

    # Hints

    def file_digest(self, path: Path) -> str:
        """Return the SHA-256 of a file outside the store, hashed once as long as it does not change.

        Raises `SourceError` if the file can't be read, or changes meanwhile.
        """
        return self._index.file_digest(path)

    def remember_json(self, namespace: str, key: str, value: Any) -> None:
        """Keep a small JSON value as a hint, which may be forgotten at any time."""
        self._index.remember(namespace, key, value)

    def recall_json(self, namespace: str, key: str) -> Any:
        """Return a hint, or `None`."""
        return self._index.recall(namespace, key)

    # Runs

    def put_run(self, record: Json) -> Path:
        """Write the record of a run under its `run_id` (see `new_run_id`) and return its path."""
        path = self._folder.run(record["run_id"])
        self._folder.write(path, seal(runs.KIND, record))
        return path

    def runs(self) -> Iterator[Json]:
        """Yield the run records, newest first; damaged ones are left out."""
        for path in reversed(runs.paths(self._folder)):
            record = runs.read(self._folder, path)
            if record is not None:
                yield record

    def log_path(self, run_id: str, node: str) -> Path:
        """Return the path for a node's log; its folder exists at return, in the system's temporary one if need be."""
        path = self._logs.log(run_id, node)
        with explained(path):
            self._logs.fs.make_folder(path.parent)
        return path

    def run_folder(self, run_id: str) -> Path:
        """Return the folder of a run's logs and report, which goes with them; it exists at return."""
        return self.log_path(run_id, "workers").parent

    def drop_temporary_logs(self) -> None:
        """Remove the logs that a store which can't be written has in the system's temporary folder."""
        logs = self.__dict__.pop("_logs", self._folder)
        if logs is not self._folder:
            logs.fs.remove(logs.root)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend an empty folder on the store's disk; it is removed at the end, or after the process died."""
        path = self._folder.new_path()
        with explained(path):
            self._folder.fs.make_folder(path)
        try:
            yield path
        finally:
            with explained(path, "clean"):
                self._folder.fs.remove(path)

    # Garbage collection

    @contextlib.contextmanager
    def live_run(self, run_id: str) -> Iterator[roots.Root]:
        """Register a run; what is added to its root is kept until the block ends or the process dies."""
        path = self._folder.live_root(run_id)
        root = roots.Root(self._folder, run_id)
        try:
            yield root
        finally:
            with explained(path):
                self._folder.fs.remove(path)

    def pin(self, name: str, keys: Iterable[str]) -> None:
        """Keep these actions from collection until `unpin`; a pin of the same name is replaced."""
        roots.pin(self._folder, name, keys)

    def unpin(self, name: str) -> None:
        """Forget a pin; one that does not exist is no error."""
        self._folder.check_writable()
        with explained(self._folder.pins):
            self._folder.fs.remove(self._folder.pin(name))

    def pins(self) -> dict[str, list[str]]:
        """Return the keys of each pin, by its name."""
        return roots.pins(self._folder)

    def gc(self, max_bytes: int | None = None, grace_seconds: float = _GRACE_SECONDS) -> GcReport:
        """Remove leftovers, then the least recently used results until the store fits.

        Args:
            max_bytes: the cap; `None` for `$OLIVELIKE_CACHE_SIZE`, else 20 GB.
            grace_seconds: objects that no action refers to are left alone for so long.
        """
        from olivelike.store import upkeep

        cap = upkeep.size_limit() if max_bytes is None else max_bytes
        return upkeep.collect(self._folder, cap, grace_seconds)

    def clear(self) -> int:
        """Remove everything, pins and runs included; return the bytes freed.

        Raises `StoreError` if another process uses the store.
        """
        from olivelike.store import upkeep

        return upkeep.clear(self._folder)

    # Looking at it

    def entries(self) -> Iterator[Entry]:
        """Yield each action with its size, last use and protection, by key."""
        keys, _ = roots.protected(self._folder)
        for action in self.actions():
            with explained(self.root, "read"), contextlib.suppress(FileNotFoundError):
                used = self._folder.fs.stat(self._folder.action(action.key)).st_mtime
                yield Entry(action, sum(action.parts.values()), used, action.key in keys)

    def size(self) -> StoreSize:
        """Return bytes and files of each of the store's folders."""
        from olivelike.store import upkeep

        with explained(self.root, "read"):
            return upkeep.size(self._folder)

    def verify(self, *, repair: bool = False, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check every byte against its hash.

        Args:
            repair: move what is wrong to quarantine; what needs it is then remade by the next run.
            progress: called with the bytes read so far and in all.
        """
        from olivelike.store import upkeep

        with explained(self.root, "read"):
            return upkeep.verify(self._folder, repair=repair, progress=progress)

    @cached_property
    def _index(self) -> Index:
        from olivelike.store.index import Index

        return Index(self._folder)

    @cached_property
    def _logs(self) -> StoreFolder:
        """Folder of logs: a store that can't be written has them in the system's temporary folder."""
        if self.writable:
            return self._folder
        place = Path(tempfile.mkdtemp(prefix="olivelike-logs-"))
        return StoreFolder(place, self._folder.fs, writable=True)


@contextlib.contextmanager
def _holding(path: Path, on_wait: Callable[[], None] | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with explained(path):
            stack.enter_context(held(path, on_wait))
        yield
