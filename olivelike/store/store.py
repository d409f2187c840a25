"""The store as the engine sees it; each kind of entry has its own module."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from olivelike._files import FileSystem
from olivelike.store.actions import Actions
from olivelike.store.failures import explained
from olivelike.store.layout import Layout
from olivelike.store.liveness import Claims
from olivelike.store.objects import Objects, ObjectWriter
from olivelike.store.publisher import Publisher
from olivelike.store.roots import Roots
from olivelike.store.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from olivelike.store.action import Action
    from olivelike.store.garbage import Garbage
    from olivelike.store.index import Index
    from olivelike.store.locks import KeyLock
    from olivelike.store.reports import Entry, GcReport, StoreSize, VerifyReport
    from olivelike.store.roots import Root

_GRACE_SECONDS = 3600.0


class Store:
    """A folder of results; any number of processes and threads may use it at once.

    Damage of any kind gives a miss, never a wrong result. Every method that writes raises `StoreError` if
    the disk refuses, and then leaves nothing behind.
    """

    def __init__(self, root: Path, *, writable: bool, filesystem: FileSystem) -> None:
        """Use `open`, which also prepares the folder."""
        self.root = root
        self._fs = filesystem
        self._layout = Layout(root)
        self._claims = Claims(self._layout, filesystem)
        self._publisher = Publisher(self._layout, filesystem, self._claims, writable=writable)
        self._objects = Objects(self._publisher)
        self._actions = Actions(self._publisher, self._objects)
        self._roots = Roots(self._publisher, self._actions, self._claims)
        self._runs = Runs(self._publisher)

    @classmethod
    def open(cls, root: Path, *, create: bool = True, filesystem: FileSystem | None = None) -> Store:
        """Open the store in the folder `root`.

        Args:
            root: the store's folder.
            create: create it if needed, and remove what dead processes left. Without it, or where the disk is
                read-only, nothing is ever changed: an absent store is an empty one, and writing raises
                `StoreError`.
            filesystem: the file operations; tests give one that fails.

        Raises:
            StoreError: if the folder can't be created or read.
        """
        filesystem = filesystem or FileSystem()
        root = root.absolute()
        if create:
            with explained(root, "create"):
                filesystem.make_folder(root)
                create = filesystem.may_write(root)
        store = cls(root, writable=create, filesystem=filesystem)
        if store.writable:
            store.sweep()
        return store

    def sweep(self) -> None:
        """Remove the temporary files of dead processes, such as a worker that was just killed."""
        with contextlib.suppress(OSError):  # a store on a read-only disk still serves its results
            self._claims.sweep()

    @property
    def writable(self) -> bool:
        """Whether this store may be written: false if opened with `create=False`, or on a read-only disk."""
        return self._publisher.writable

    # Objects

    def object_path(self, digest: str) -> Path:
        """Return where an object lies, present or not."""
        return self._objects.path(digest)

    def put_bytes(self, data: bytes, digest: str | None = None) -> str:
        """Store `data` and return its digest, computed unless given; a damaged object of that digest is replaced."""
        return self._objects.put_bytes(data, digest)

    def put_file(self, path: Path) -> str:
        """Store a finished file and return its digest; one in `scratch()` is moved, any other copied."""
        return self._objects.put_file(path)

    def writer(self) -> ObjectWriter:
        """Return a context manager with `write(piece)` and `commit() -> digest`, for big objects."""
        return ObjectWriter(self._objects)

    def read_bytes(self, digest: str) -> bytes | None:
        """Return an object's bytes, checked; `None` if it is absent, or damaged and now in quarantine."""
        return self._objects.read_bytes(digest)

    def check_object(self, digest: str) -> bool:
        """Read an object through; if it does not match its digest, quarantine it and return `False`."""
        if self._objects.is_whole(digest):
            return True
        self._publisher.set_aside(self._objects.path(digest))
        return False

    # Actions

    def get_action(self, key: str) -> Action | None:
        """Return the action; `None` if its record is absent or damaged, or a part is missing."""
        return self._actions.get(key)

    def put_action(self, action: Action) -> None:
        """Record a result, after all of its parts were put.

        Raises:
            ValueError: if an output is not among the parts.
            StoreError: if a part is missing, or the disk refuses.
        """
        self._actions.put(action)

    def drop_action(self, key: str) -> int:
        """Remove an action and the parts that nothing else needs; return the bytes freed."""
        return self.drop_actions([key])

    def drop_actions(self, keys: Iterable[str]) -> int:
        """Do the same for several actions, in one look at the store."""
        return self._garbage().drop(keys)

    def actions(self) -> Iterator[Action]:
        """Yield every action that is recorded, by key."""
        return self._actions.records()

    def lock(
        self, key: str, on_wait: Callable[[], None] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the lock on a key, across processes; it dies with the process.

        It spares double work; correctness never rests on it.

        Args:
            key: the action's key.
            on_wait: called once if another holder has it; raising from it gives up.
        """
        return self._lock(self._layout.key_lock(key), on_wait)

    def try_lock(self, key: str) -> KeyLock | None:
        """Take the lock on a key, or return `None` at once if another holder has it."""
        from olivelike.store.locks import try_lock

        self._publisher.check_writable()
        path = self._layout.key_lock(key)
        with explained(path):
            self._fs.make_folder(path.parent)
            return try_lock(path)

    # Hints

    def file_digest(self, path: Path) -> str:
        """Return the SHA-256 of a file outside the store, hashed once as long as it does not change.

        Raises:
            SourceError: if the file can't be read, or changes meanwhile.
        """
        from olivelike.store.file_digests import file_digest

        return file_digest(path, self._index)

    def remember_json(self, namespace: str, key: str, value: Any) -> None:
        """Keep a small JSON value as a hint, which may be forgotten at any time."""
        self._index.remember(namespace, key, value)

    def recall_json(self, namespace: str, key: str) -> Any:
        """Return a hint, or `None`."""
        return self._index.recall(namespace, key)

    # Runs

    def put_run(self, record: dict[str, Any]) -> Path:
        """Write the record of a run under its `run_id` (see `new_run_id`) and return its path."""
        return self._runs.put(record)

    def runs(self) -> Iterator[dict[str, Any]]:
        """Yield the run records, newest first; damaged ones are left out."""
        return self._runs.records()

    def log_path(self, run_id: str, node: str) -> Path:
        """Return the path for a node's log; its folder exists at return."""
        return self._runs.log_path(run_id, node)

    def run_folder(self, run_id: str) -> Path:
        """Return the folder of a run's logs and report, which goes with them; it exists at return."""
        return self._runs.folder(run_id)

    def drop_temporary_logs(self) -> None:
        """Remove the logs that a store which can't be written has in the system's temporary folder."""
        self._runs.drop_elsewhere()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Lend an empty folder on the store's disk; it is removed at the end, or after the process died."""
        path = self._publisher.temporary()
        with explained(path):
            self._fs.make_folder(path)
        try:
            yield path
        finally:
            with explained(path, "clean"):
                self._fs.remove(path)

    # Garbage collection

    @contextlib.contextmanager
    def live_run(self, run_id: str) -> Iterator[Root]:
        """Register a run; what is added to its root is kept until the block ends or the process dies."""
        root = self._roots.open(run_id)
        try:
            yield root
        finally:
            self._roots.close(run_id)

    def pin(self, name: str, keys: Iterable[str]) -> None:
        """Keep these actions from collection until `unpin`; a pin of the same name is replaced."""
        self._roots.pin(name, keys)

    def unpin(self, name: str) -> None:
        """Forget a pin; one that does not exist is no error."""
        self._roots.unpin(name)

    def pins(self) -> dict[str, list[str]]:
        """Return the keys of each pin, by its name."""
        return self._roots.pins()

    def gc(self, max_bytes: int | None = None, grace_seconds: float = _GRACE_SECONDS) -> GcReport:
        """Remove leftovers, then the least recently used results until the store fits.

        Args:
            max_bytes: the cap; `None` for `$OLIVELIKE_CACHE_SIZE`, else 20 GB.
            grace_seconds: objects that no action refers to are left alone for so long.
        """
        from olivelike.store.limits import size_limit

        return self._garbage().collect(size_limit() if max_bytes is None else max_bytes, grace_seconds)

    def clear(self) -> int:
        """Remove everything, pins and runs included; return the bytes freed.

        Raises:
            StoreError: if another process uses the store.
        """
        return self._garbage().clear()

    # Looking at it

    def entries(self) -> Iterator[Entry]:
        """Yield each action with its size, last use and protection, by key."""
        from olivelike.store.reports import Entry

        keys, _ = self._roots.protected()
        for action in self._actions.records():
            with explained(self.root, "read"), contextlib.suppress(FileNotFoundError):
                used = self._fs.stat(self._layout.action(action.key)).st_mtime
                yield Entry(action, sum(action.parts.values()), used, action.key in keys)

    def size(self) -> StoreSize:
        """Return bytes and files of each of the store's folders."""
        with explained(self.root, "read"):
            return self._garbage().size()

    def verify(
        self, *, repair: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> VerifyReport:
        """Check every byte against its hash.

        Args:
            repair: move what is wrong to quarantine; what needs it is then remade by the next run.
            progress: called with the bytes read so far and in all.
        """
        from olivelike.store.damage import Verifier

        parts = (self._publisher, self._objects, self._actions, self._roots, self._runs)
        with explained(self.root, "read"):
            return Verifier(*parts, repair, progress).verify()

    @contextlib.contextmanager
    def _lock(self, path: Path, on_wait: Callable[[], None] | None) -> Iterator[None]:
        from olivelike.store.locks import held

        self._publisher.check_writable()
        with contextlib.ExitStack() as stack:
            with explained(path):
                self._fs.make_folder(path.parent)
                stack.enter_context(held(path, on_wait))
            yield

    def _garbage(self) -> Garbage:
        from olivelike.store.garbage import Garbage

        return Garbage(self._publisher, self._actions, self._roots, self._claims, self._runs)

    @cached_property
    def _index(self) -> Index:
        from olivelike.store.index import Index

        return Index(self._publisher)
