"""The index is a hint: damaged or forged, it is forgotten, and it never runs anything."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import diskcache
import pytest

from olivelike.store import Store, index
from olivelike.store.index import TextDisk
from tests.test_file_identity import rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

DATABASE = Path("index") / "cache.db"


@pytest.fixture
def warm(store: Store) -> Store:
    store.remember_json("space", "key", {"answer": [1, 2.5, None]})
    return store


def change(store: Store, statement: str, *values: object) -> None:
    connection = sqlite3.connect(store.root / DATABASE)
    with connection:
        assert connection.execute(statement, values).rowcount
    connection.close()


def test_a_hint_is_recalled_by_another_process(warm: Store) -> None:
    script = "import sys, pathlib; from olivelike.store import Store; "
    script += "print(Store.open(pathlib.Path(sys.argv[1])).recall_json('space', 'key'))"
    shown = subprocess.run([sys.executable, "-c", script, warm.root], check=True, capture_output=True, text=True)
    assert shown.stdout == "{'answer': [1, 2.5, None]}\n"
    assert warm.recall_json("space", "other") is None
    assert warm.recall_json("other", "key") is None
    warm.remember_json("space", "key", "new")
    assert warm.recall_json("space", "key") == "new"


def test_the_index_is_for_its_owner_only(warm: Store) -> None:
    index = warm.root / "index"
    assert index.stat().st_mode & 0o777 == 0o700
    index.chmod(0o755)
    warm.remember_json("space", "key", 1)
    assert index.stat().st_mode & 0o777 == 0o700


def test_recalling_changes_no_file_and_works_on_a_store_opened_for_reading(warm: Store) -> None:
    before = {path: path.stat().st_mtime_ns for path in warm.root.rglob("*")}
    assert Store.open(warm.root, create=False).recall_json("space", "key") is not None
    assert {path: path.stat().st_mtime_ns for path in warm.root.rglob("*")} == before


def test_a_read_only_index_is_asked_through_a_copy_that_goes_with_the_process(warm: Store, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    (warm.root / DATABASE).chmod(0o444)
    (warm.root / "index").chmod(0o555)
    script = "import sys, pathlib; from olivelike.store import Store\n"
    script += "store = Store.open(pathlib.Path(sys.argv[1]), create=False)\n"
    script += "print(store.recall_json('space', 'key'))\n"
    script += "modes = [path.stat().st_mode for path in pathlib.Path(sys.argv[2]).glob('*/*')]\n"
    script += "print([bool(mode & 0o200) for mode in modes])"
    shown = subprocess.run(
        [sys.executable, "-c", script, warm.root, copies],
        env={**os.environ, "TMPDIR": str(copies)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert shown.stdout == "{'answer': [1, 2.5, None]}\n[True]\n"
    assert list(copies.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(b"no database" * 999), id="overwritten"),
        pytest.param(lambda path: path.write_bytes(b""), id="emptied"),
        pytest.param(lambda path: os.truncate(path, 5000), id="truncated"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:100] + b"\xff" * 20000), id="garbled"),
        pytest.param(Path.unlink, id="deleted"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="a folder"),
    ],
)
def test_a_damaged_database_is_forgotten_and_rebuilt(warm: Store, damage) -> None:
    damage(warm.root / DATABASE)
    assert warm.recall_json("space", "key") is None
    warm.remember_json("space", "key", "first")
    warm.remember_json("space", "key", "again")
    assert warm.recall_json("space", "key") == "again"


def test_a_database_of_another_shape_is_rebuilt_at_the_next_write(warm: Store) -> None:
    change(warm, "UPDATE Settings SET value = 'rubbish' WHERE key = 'size'")
    change(warm, "INSERT INTO Settings VALUES (x'00', 'rubbish')")
    change(warm, "INSERT INTO Settings VALUES ('disk_rubbish', 'rubbish')")
    change(warm, "INSERT INTO Settings VALUES ('sqlite_); rubbish', 'rubbish')")
    change(warm, "INSERT INTO Settings VALUES ('set', 'rubbish')")
    for value in ("first", "again"):
        warm.remember_json("space", "key", value)
    assert warm.recall_json("space", "key") == "again"


def test_a_flipped_bit_in_a_value_is_a_miss(warm: Store) -> None:
    path = warm.root / DATABASE
    data = path.read_bytes()
    for place in range(data.index(b"[1, 2.5, null]"), data.index(b"[1, 2.5, null]") + 14):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert warm.recall_json("space", "key") in (None, {"answer": [1, 2.5, None]})


def test_the_value_of_another_key_is_a_miss(warm: Store) -> None:
    warm.remember_json("space", "other", 1)
    change(warm, "UPDATE Cache SET value = (SELECT value FROM Cache WHERE key LIKE '%other%') WHERE key LIKE '%key%'")
    assert warm.recall_json("space", "key") is None


class Bomb:
    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self):
        return (os.mkdir, (str(self.flag),))


@pytest.mark.parametrize("kind", ["value", "value in a file", "key", "binary", "text file"])
def test_forged_rows_run_nothing_and_remove_nothing(warm: Store, tmp_path: Path, kind: str) -> None:
    flag = tmp_path / "exploded"
    bomb = sqlite3.Binary(pickle.dumps(Bomb(flag)))
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(bomb))
    outside = os.path.relpath(victim, warm.root / "index")
    if kind == "value":
        change(warm, "UPDATE Cache SET mode = 4, value = ?", bomb)
    elif kind == "value in a file":
        change(warm, "UPDATE Cache SET mode = 4, value = NULL, filename = ?", outside)
    elif kind == "key":
        change(warm, "UPDATE Cache SET raw = 0, key = ?", bomb)
    elif kind == "binary":
        change(warm, "UPDATE Cache SET value = ?", bomb)
    else:
        change(warm, "UPDATE Cache SET mode = 3, value = NULL, filename = ?", outside)
    assert warm.recall_json("space", "key") is None

    cache = diskcache.Cache(str(warm.root / "index"), disk=TextDisk)
    for operation in (
        lambda: list(cache),
        lambda: [cache.get(key) for key in cache],
        lambda: cache.get('["space","key"]'),
        cache.peekitem,
        lambda: cache.pop('["space","key"]', default=None),
    ):
        try:
            operation()
        except (sqlite3.DataError, KeyError):
            continue
    cache.close()

    warm.remember_json("space", "key", "new")
    assert warm.recall_json("space", "key") == "new"
    assert not flag.exists()
    assert victim.exists()


def test_the_storage_layer_takes_only_text(tmp_path: Path) -> None:
    disk = TextDisk(str(tmp_path))
    assert disk.put("key") == ("key", True)
    assert disk.store("text" * 99_999, read=False)[1:] == (1, None, "text" * 99_999)
    for refused in (
        lambda: disk.put(b"key"),
        lambda: disk.put(("key",)),
        lambda: disk.store({"a": 1}, read=False),
        lambda: disk.store("stream", read=True),
        disk.filename,
    ):
        with pytest.raises(TypeError):
            refused()
    assert disk.fetch(1, None, "text", False) == "text"
    for damaged in (("text", 2, None), ("text", 4, None), ("text", 1, "file"), (b"1", 1, None), (None, 1, None)):
        value, mode, filename = damaged
        with pytest.raises(sqlite3.DataError):
            disk.fetch(mode, filename, value, False)


@pytest.mark.parametrize("text", ["]", '"text"', "[1]", "[" * 9999, "null", '["0", 1]'])
def test_a_text_that_is_no_hint_is_a_miss(warm: Store, text: str) -> None:
    change(warm, "UPDATE Cache SET value = ?", text)
    assert warm.recall_json("space", "key") is None
    warm.remember_json("space", "key", 1)
    assert warm.recall_json("space", "key") == 1


def test_an_index_that_names_another_folder_as_its_own_is_forgotten(warm: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    change(warm, "INSERT INTO Settings VALUES ('_directory', ?)", str(elsewhere))
    store = Store.open(warm.root)
    assert store.recall_json("space", "key") is None
    store.remember_json("space", "key", 1)
    assert store.recall_json("space", "key") == 1
    assert sum(path.stat().st_size for path in elsewhere.iterdir()) == 0


def test_an_index_of_another_version_is_read_or_begun_anew(warm: Store) -> None:
    """Such as one with a write-ahead log, or with a column less."""
    connection = sqlite3.connect(warm.root / DATABASE)
    connection.execute("PRAGMA journal_mode = wal")
    connection.close()
    assert Store.open(warm.root).recall_json("space", "key") == {"answer": [1, 2.5, None]}
    change(warm, "DELETE FROM Settings WHERE key LIKE 'disk%'")
    assert Store.open(warm.root).recall_json("space", "key") == {"answer": [1, 2.5, None]}
    connection = sqlite3.connect(warm.root / DATABASE)
    connection.execute("ALTER TABLE Cache DROP COLUMN filename")
    connection.close()
    assert Store.open(warm.root).recall_json("space", "key") is None
    warm.remember_json("space", "key", 1)
    assert Store.open(warm.root).recall_json("space", "key") == 1


@pytest.fixture
def foreign_lock(warm: Store, monkeypatch: pytest.MonkeyPatch):
    """Hold the database as a program of others may do, longer than stores wait from now on."""
    assert warm.recall_json("space", "key")
    monkeypatch.setattr("olivelike.store.index._BUSY_SECONDS", 0.5)
    monkeypatch.setattr(warm._index, "_patience", 0.5)
    connection = sqlite3.connect(warm.root / DATABASE, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield connection
    connection.close()


def soon(ask: Callable[[], object]) -> object:
    end = time.monotonic() + 60
    while (answer := ask()) is None and time.monotonic() < end:
        time.sleep(0.01)
    return answer


def test_a_busy_index_is_skipped_and_not_rebuilt(foreign_lock, warm: Store) -> None:
    for store in (warm, Store.open(warm.root)):  # one with an open index, and one without
        assert store.recall_json("space", "key") is None
        store.remember_json("space", "key", "new")
    foreign_lock.execute("ROLLBACK")
    for store in (warm, Store.open(warm.root)):
        assert soon(lambda store=store: store.recall_json("space", "key")) == {"answer": [1, 2.5, None]}
    assert not warm.root.joinpath("quarantine").exists()


def test_a_busy_index_is_waited_for_once_in_a_process(foreign_lock, warm: Store, monkeypatch) -> None:
    store, looks = Store.open(warm.root), itertools.count()
    with monkeypatch.context() as patch:  # A clock on which each look takes as long as it waits.
        clock = SimpleNamespace(monotonic=lambda: next(looks) * index._POLL_SECONDS, time=time.time)
        patch.setattr(index, "time", clock)
        for _ in range(5):
            assert store.recall_json("space", "key") is None
            store.remember_json("space", "other", 1)
    foreign_lock.execute("ROLLBACK")
    assert next(looks) * index._POLL_SECONDS == pytest.approx(index._BUSY_SECONDS, abs=2 * index._POLL_SECONDS)
    assert soon(lambda: store.recall_json("space", "key")) is not None


def test_the_wait_for_a_busy_index_ends_with_the_process_and_with_ctrl_c(foreign_lock, warm: Store) -> None:
    script = "import sys, pathlib; from olivelike.store import Store, index; index._BUSY_SECONDS = 60.0; print(1, "
    script += "flush=True); Store.open(pathlib.Path(sys.argv[1])).recall_json('space', 'key')"
    with subprocess.Popen(
        [sys.executable, "-c", script, warm.root], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert errors.decode().endswith("KeyboardInterrupt\n")


def test_a_file_is_hashed_again_only_when_it_changed(store: Store, tmp_path: Path, monkeypatch) -> None:
    hashed: list[Path] = []
    from olivelike.digest import digest_file

    def counting(path: Path) -> str:
        hashed.append(path)
        return digest_file(path)

    monkeypatch.setattr("olivelike.store.index.digest_file", counting)
    monkeypatch.setattr("olivelike.store.index._SETTLED_SECONDS", 3600.0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    first = store.file_digest(path)
    store.file_digest(path)
    assert len(hashed) == 2, "changed just before: not remembered"
    monkeypatch.setattr("olivelike.store.index._SETTLED_SECONDS", 0.0)
    assert store.file_digest(path) == store.file_digest(path) == first
    assert len(hashed) == 3
    rewrite(path, b"Weights")
    assert store.file_digest(path) != first, "same size and mtime, other ctime"
    assert len(hashed) == 4


def test_a_file_that_changes_while_it_is_hashed_is_refused(store: Store, tmp_path: Path, monkeypatch) -> None:
    from olivelike.errors import SourceError

    path = tmp_path / "growing"
    path.write_bytes(b"")

    def growing(path: Path) -> str:
        path.write_bytes(path.read_bytes() + b"x")
        return "0" * 64

    monkeypatch.setattr("olivelike.store.index.digest_file", growing)
    with pytest.raises(SourceError, match="changes while it is read"):
        store.file_digest(path)
    with pytest.raises(SourceError, match="absent"):
        store.file_digest(tmp_path / "absent")


def test_looking_up_results_imports_no_lock_library_and_hints_alone_import_diskcache(
    warm: Store, tmp_path: Path
) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"weights")
    os.utime(path, (time.time() - 10, time.time() - 10))
    script = """
import sys, pathlib
from olivelike.store import Store
store = Store.open(pathlib.Path(sys.argv[1]))
libraries = {"diskcache", "filelock", "psutil", "numpy", "pydantic"}
store.get_action("0" * 64), list(store.runs())
print(sorted(libraries & sys.modules.keys()))
assert store.recall_json("space", "key")
print(sorted(libraries & sys.modules.keys()))
"""
    shown = subprocess.run([sys.executable, "-c", script, warm.root], check=True, capture_output=True, text=True)
    assert shown.stdout == "[]\n['diskcache']\n"
