"""Garbage collection: what it takes, in which order, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psutil
import pytest
from store_faults import make_action, put

from olivelike._files import FileSystem
from olivelike._text import byte_count
from olivelike.errors import StoreError, UsageError
from olivelike.store import Action, Store, new_run_id
from olivelike.store.folder import FOLDERS
from olivelike.store.runs import KEPT_RUNS
from olivelike.store.upkeep import DEFAULT_BYTES, size_limit

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024


def record_path(store: Store, action: Action) -> Path:
    return store.root / "actions" / action.key[:2] / f"{action.key}.json"


def put_sized(store: Store, name: str, size: int, *, used_seconds_ago: float) -> Action:
    action = put(store, name, name.encode() * (size // len(name)))
    moment = time.time() - used_seconds_ago
    os.utime(record_path(store, action), (moment, moment))
    return action


def present(store: Store) -> set[str]:
    return {str(action.inputs["pass"]) for action in store.actions()}


def test_the_least_recently_used_results_go_first_until_the_store_fits(store: Store) -> None:
    first = put_sized(store, "first", 100 * KIB, used_seconds_ago=30)
    put_sized(store, "second", 100 * KIB, used_seconds_ago=20)
    put_sized(store, "third", 100 * KIB, used_seconds_ago=10)
    assert store.get_action(first.key) == first, "a hit is a use"
    report = store.gc(max_bytes=210 * KIB)
    assert present(store) == {"first", "third"}
    assert (report.actions_removed, report.objects_removed) == (1, 1)
    assert report.bytes_after <= 210 * KIB
    assert report.bytes_freed > 99 * KIB
    assert store.gc(max_bytes=210 * KIB).actions_removed == 0


def test_a_look_without_create_is_no_use(store: Store) -> None:
    action = put_sized(store, "first", KIB, used_seconds_ago=30)
    before = record_path(store, action).stat().st_mtime_ns
    assert Store.open(store.root, create=False).get_action(action.key) == action
    assert record_path(store, action).stat().st_mtime_ns == before


def test_a_part_that_a_kept_result_shares_stays(store: Store) -> None:
    old = put(store, "old", b"old" * KIB, b"shared" * KIB)
    os.utime(record_path(store, old), (1, 1))
    new = put(store, "new", b"new" * KIB, b"shared" * KIB)
    store.gc(max_bytes=12 * KIB)
    assert present(store) == {"new"}
    assert store.get_action(new.key) == new
    assert store.read_bytes(old.outputs["graph"]) is None


def test_pins_and_live_runs_are_left_alone(store: Store) -> None:
    pinned, live, other = (put(store, name, name.encode()) for name in ("pinned", "live", "other"))
    loose = store.put_bytes(b"not recorded yet")
    store.pin("the best/one", [pinned.key])
    with store.live_run(new_run_id()) as root:
        root.add(keys=[live.key, make_action("later", b"later").key])
        root.add(digests=[loose])
        put(store, "later", b"later")
        store.gc(max_bytes=0, grace_seconds=0)
        assert present(store) == {"pinned", "live", "later"}
        assert store.read_bytes(loose) == b"not recorded yet"
        protected = {entry.action.key: entry.protected for entry in store.entries()}
        assert all(protected.values())
    store.gc(max_bytes=0, grace_seconds=0)
    assert present(store) == {"pinned"}
    assert store.read_bytes(loose) is None
    assert store.pins() == {"the best/one": [pinned.key]}
    store.unpin("the best/one")
    store.unpin("never pinned")
    store.gc(max_bytes=0, grace_seconds=0)
    assert present(store) == set()
    assert other.key


def test_objects_without_an_action_have_a_period_of_grace(store: Store) -> None:
    digest = store.put_bytes(b"graph")
    store.gc(max_bytes=0)
    assert store.read_bytes(digest) == b"graph"
    old = time.time() - 7200
    os.utime(store.object_path(digest), (old, old))
    store.put_bytes(b"graph")
    store.gc(max_bytes=0)
    assert store.read_bytes(digest) == b"graph", "put again, so fresh"
    os.utime(store.object_path(digest), (old, old))
    assert store.gc(max_bytes=1 << 30).objects_removed == 1


OTHER_PROCESS = """
import pathlib, sys
from olivelike.store import Store
store = Store.open(pathlib.Path(sys.argv[1]))
with store.live_run("other-run") as root, store.scratch() as folder, store.lock("1" * 64):
    root.add(keys=sys.argv[2:])
    (folder / "file").write_text("x")
    print(store.put_bytes(b"about to be recorded"), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def other(store: Store):
    """Start another process that uses the store, with the given keys in its root."""
    started: list[subprocess.Popen[str]] = []

    def start(*keys: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS, store.root, *keys],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_another_process_keeps_what_it_uses_until_it_is_killed(store: Store, other) -> None:
    used, unused = put(store, "used", b"used"), put(store, "unused", b"unused")
    os.utime(record_path(store, unused), (1, 1))
    process, fresh = other(used.key)
    store.gc(max_bytes=0, grace_seconds=0)
    assert present(store) == {"used"}
    assert store.read_bytes(fresh) == b"about to be recorded"
    store.drop_action(used.key)
    assert store.read_bytes(used.outputs["graph"]) == b"used"
    with pytest.raises(StoreError, match="in use"):
        store.clear()
    assert [path.name for path in store.root.joinpath("tmp").rglob("file")] == ["file"]

    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    Store.open(store.root)
    assert list(store.root.joinpath("tmp").rglob("file")) == []
    store.gc(max_bytes=0, grace_seconds=0)
    assert store.size().files["objects"] == 0
    assert store.size().files["roots"] == 0


def test_another_process_that_ends_leaves_no_trace_of_itself(store: Store, other) -> None:
    process, _ = other()
    process.communicate("\n")
    assert process.returncode == 0
    assert list(store.root.joinpath("tmp").iterdir()) == []
    assert list(store.root.joinpath("locks", "live").iterdir()) == []
    assert list(store.root.joinpath("roots", "runs").iterdir()) == []


def test_a_lock_is_waited_for_and_dies_with_its_process(store: Store, other) -> None:
    process, _ = other()
    waits: list[int] = []

    def kill_the_holder() -> None:
        waits.append(1)
        process.kill()
        process.wait()

    with store.lock("1" * 64, on_wait=kill_the_holder):
        assert waits == [1]
    with store.lock("1" * 64, on_wait=kill_the_holder):
        assert waits == [1]


def test_a_waiter_can_give_up(store: Store, other) -> None:
    other()

    def give_up() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.lock("1" * 64, on_wait=give_up):
        pytest.fail("the lock is held")


def test_clearing_removes_everything(store: Store) -> None:
    action = put(store, "one", b"graph" * KIB)
    store.pin("best", [action.key])
    store.put_run({"run_id": "run"})
    store.log_path("run", "node").write_text("log")
    store.remember_json("space", "key", 1)
    assert store.clear() > 5 * KIB
    assert store.size().total == 0
    assert store.recall_json("space", "key") is None
    put(store, "one", b"graph")
    assert store.get_action(action.key) is None or store.verify().ok


def test_quarantine_old_key_locks_and_incomplete_records_do_not_pile_up(store: Store) -> None:
    action = put(store, "one", b"graph")
    store.object_path(action.outputs["graph"]).unlink()
    os.utime(record_path(store, action), (1, 1))
    for name in "12":
        with store.lock(name * 64):
            pass
    os.utime(store.root / "locks" / "keys" / ("1" * 64 + ".lock"), (1, 1))
    damaged = store.put_bytes(b"damaged")
    store.object_path(damaged).write_bytes(b"d")
    assert store.read_bytes(damaged) is None
    store.gc()
    assert present(store) == set()
    assert store.size().files["quarantine"] == 1
    assert [path.name[0] for path in store.root.joinpath("locks", "keys").iterdir()] == ["2"]
    store.gc(max_bytes=0)
    assert store.size().files["quarantine"] == 0


def test_old_run_records_and_their_logs_go(store: Store) -> None:
    for number in range(KEPT_RUNS + 5):
        run_id = f"{number:04}-run"
        store.put_run({"run_id": run_id})
        if number % 50 < 5:
            store.log_path(run_id, "unet").write_text("log")
    store.gc()
    kept = [run["run_id"] for run in store.runs()]
    assert kept == [f"{number:04}-run" for number in range(KEPT_RUNS + 4, 4, -1)]
    assert min(path.name for path in store.root.joinpath("logs").iterdir()) == "0050-run"


def test_run_ids_sort_by_time_and_names_become_safe_paths(store: Store) -> None:
    ids = []
    for _ in range(5):
        ids.append(new_run_id())
        while f"{datetime.now(UTC):%f}" in ids[-1]:  # Each has a microsecond of its own.
            pass
    assert ids == sorted(ids)
    logs = store.root / "logs" / "run"
    assert store.log_path("run", "unet/convert") == logs / "unet" / "convert.log"
    assert store.log_path("run", "../a:b") == logs / "%2E%2E" / "a%3Ab.log"
    for wrong in ("../run", "", "a/b", "run.json"):
        with pytest.raises(ValueError, match="run id"):
            store.log_path(wrong, "node")
    with pytest.raises(ValueError, match="kind"):
        store.put_run({"run_id": "run", "kind": "mine"})


def test_the_cap_is_20_gb_unless_the_environment_says_otherwise(store: Store, monkeypatch) -> None:
    monkeypatch.delenv("OLIVELIKE_CACHE_SIZE", raising=False)
    assert size_limit() == DEFAULT_BYTES == 20 * 1000**3
    assert store.gc().max_bytes == DEFAULT_BYTES
    monkeypatch.setenv("OLIVELIKE_CACHE_SIZE", "1.5 MB")
    assert store.gc().max_bytes == 1_500_000
    monkeypatch.setenv("OLIVELIKE_CACHE_SIZE", "much")
    with pytest.raises(UsageError, match=r"OLIVELIKE_CACHE_SIZE: 'much' is no size.*20GB"):
        store.gc()
    sizes = {"0": 0, "512": 512, "2K": 2000, "2KiB": 2048, "3mib": 3 << 20, "1T": 10**12, "7B": 7}
    assert {text: byte_count(text, "--max-size") for text in sizes} == sizes
    for wrong in ("-1", "1 PB", "GiB", "1.", "KB2", "1.5.GB", "20,GB"):
        with pytest.raises(UsageError):
            byte_count(wrong, "--max-size")


def test_collecting_walks_through_the_store_once(tmp_path):
    walked = []

    class Watching(FileSystem):
        def files(self, folder):
            walked.append(folder)
            return super().files(folder)

    store = Store.open(tmp_path / "cache", filesystem=Watching())
    store.put_bytes(b"x" * 1000)
    walked.clear()
    report = store.gc(grace_seconds=-1)
    assert sorted(walked) == sorted(store.root / name for name in FOLDERS), "each folder once, and all of them"
    assert (report.bytes_freed, report.objects_removed) == (1000, 1)
    assert report.bytes_after == store.size().total


@pytest.mark.parametrize("windows", [True, False])
def test_an_object_that_a_reader_has_mapped_is_left_to_the_next_collection_on_windows(tmp_path, monkeypatch, windows):
    monkeypatch.setattr("olivelike._files.WINDOWS", windows)
    mapped = []

    class Mapping(FileSystem):
        def remove(self, path):
            if path in mapped:
                raise PermissionError(13, "in use", str(path))
            super().remove(path)

    store = Store.open(tmp_path / "cache", filesystem=Mapping())
    digest = store.put_bytes(b"mapped")
    mapped.append(store.object_path(digest))
    if not windows:
        with pytest.raises(StoreError, match="in use"):
            store.gc(grace_seconds=-1)
        return
    assert store.gc(grace_seconds=-1).objects_removed == 0
    assert store.read_bytes(digest) == b"mapped"
    mapped.clear()
    assert store.gc(grace_seconds=-1).objects_removed == 1
