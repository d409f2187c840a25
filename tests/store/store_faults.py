"""File systems that fail, a piece of work that uses all of the store, and a check of what it leaves."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._files import FileSystem
from olivelike.digest import digest_bytes, digest_json
from olivelike.store import Action, Store, new_run_id

if TYPE_CHECKING:
    from collections.abc import Callable

GROWING = frozenset({"create", "write", "sync", "make_folder"})
"""Operations that a full disk refuses."""
CHANGING = GROWING | {"replace", "touch", "remove", "set_private", "sync_folder"}
"""Operations that a read-only disk refuses."""
OPERATIONS = sorted(name for name in vars(FileSystem) if not name.startswith("_"))


class UnsyncedFileSystem(FileSystem):
    """Waits for no disk: what a process wrote outlives it, and no test cuts the power."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync_folder(self, folder: Path) -> None:
        """Do nothing."""


class CountingFileSystem(UnsyncedFileSystem):
    """Calls `before(name, number, arguments)` ahead of each operation; it may raise or not return."""

    def __init__(self, before: Callable[[str, int, tuple[Any, ...]], None]) -> None:
        self.before = before
        self.count = 0
        self.depth = 0

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in OPERATIONS:
            return value

        def operation(*arguments: Any, **options: Any) -> Any:
            if self.depth == 0:  # an operation that calls another is one
                self.count += 1
                self.before(name, self.count, arguments)
            self.depth += 1
            try:
                return value(*arguments, **options)
            finally:
                self.depth -= 1

        return operation


def killing(at: int) -> FileSystem:
    """Kill this process at operation number `at`; a write is half done then."""

    def before(name: str, number: int, arguments: tuple[Any, ...]) -> None:
        if number == at:
            if name == "write":
                descriptor, data = arguments
                os.write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return CountingFileSystem(before)


def failing(code: int, at: int, names: frozenset[str] = frozenset(OPERATIONS), *, once: bool) -> CountingFileSystem:
    """Raise the error `code` at operation number `at`, or from there on, if it is one of `names`."""

    def before(name: str, number: int, arguments: tuple[Any, ...]) -> None:
        if (number == at if once else number >= at) and name in names:
            raise OSError(code, os.strerror(code), str(next((a for a in arguments if isinstance(a, Path)), "")))

    return CountingFileSystem(before)


def make_action(name: str, *parts: bytes) -> Action:
    """Return an action whose parts are these bytes; the first is its graph."""
    digests = {digest_bytes(part): len(part) for part in parts}
    return Action(
        key=digest_json(["test", name]),
        inputs={"pass": name, "options": {"size": 1}},
        outputs={"graph": digest_bytes(parts[0])},
        parts=digests,
        facts={"nodes": 3},
        seconds=0.5,
        peak_memory_bytes=1 << 20,
        created="2026-01-02T03:04:05+00:00",
    )


def put(store: Store, name: str, *parts: bytes) -> Action:
    """Store the parts and their action."""
    for part in parts:
        store.put_bytes(part)
    action = make_action(name, *parts)
    store.put_action(action)
    return action


OLD, UNUSED, GRAPH, TENSOR, SCRATCH = (word.encode() * 300 for word in ("old", "unused", "graph", "tensor", "file"))
CONTENTS = {digest_bytes(data): data for data in (OLD, UNUSED, GRAPH, TENSOR, SCRATCH)}
NEW = make_action("new", GRAPH, TENSOR, SCRATCH)


def prepare(root: Path) -> None:
    """Make a store with two results, one of them damaged."""
    store = Store.open(root, filesystem=UnsyncedFileSystem())
    put(store, "old", OLD)
    put(store, "unused", UNUSED)
    store.put_bytes(GRAPH)
    store.object_path(digest_bytes(GRAPH)).write_bytes(b"damaged")


def work(store: Store) -> None:
    """Use every part of the store that writes; at the end `NEW` is there and the result `unused` is not."""
    with store.live_run(new_run_id()) as root:
        root.add(keys=[make_action("old", OLD).key])
        if store.get_action(NEW.key) is None:
            store.put_bytes(GRAPH)
            with store.writer() as writer:
                writer.write(TENSOR[:100])
                writer.write(TENSOR[100:])
                writer.commit()
            with store.scratch() as folder:
                (folder / "finished").write_bytes(SCRATCH)
                store.put_file(folder / "finished")
            store.put_action(NEW)
        store.put_run({"run_id": "20260102-run", "status": "ok"})
        store.log_path("20260102-run", "unet/convert").write_text("done")
        store.pin("best", [NEW.key])
    store.drop_action(make_action("unused", UNUSED).key)
    store.gc(max_bytes=1 << 30, grace_seconds=0)


def check_sound(store: Store) -> None:
    """Check that all that the store gives is right, and that it holds nothing else."""
    for digest, data in CONTENTS.items():
        assert store.read_bytes(digest) in (None, data)
    for action in (NEW, make_action("old", OLD), make_action("unused", UNUSED)):
        found = store.get_action(action.key)
        if found is not None:
            assert found == action
    assert [path for path in store.root.joinpath("tmp").rglob("*") if path.is_file()] == []
    assert {path.name for path in store.root.iterdir()} <= {*store.size().bytes}


def check_complete(store: Store) -> None:
    """Check that the work is done."""
    check_sound(store)
    assert store.get_action(NEW.key) == NEW
    assert store.get_action(make_action("unused", UNUSED).key) is None
    assert all(store.read_bytes(digest) == CONTENTS[digest] for digest in NEW.parts)
    assert [run["run_id"] for run in store.runs()] == ["20260102-run"]
    assert store.pins() == {"best": [NEW.key]}
    assert store.verify().ok
