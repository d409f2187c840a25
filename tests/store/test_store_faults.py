"""What the store is after its process was killed or its disk failed, at each file operation in turn."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from store_faults import (
    CHANGING,
    GROWING,
    NEW,
    OPERATIONS,
    CountingFileSystem,
    UnsyncedFileSystem,
    check_complete,
    check_sound,
    failing,
    make_action,
    prepare,
    put,
    work,
)

from olivelike.errors import StoreError
from olivelike.store import Store

EVERY = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
"""How many operations one is taken of."""


@EVERY
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks one process per operation")
def test_a_kill_at_any_operation_leaves_a_sound_store_that_the_same_work_completes(tmp_path: Path, every: int) -> None:
    script = Path(__file__).with_name("killed_at_each_operation.py")
    subprocess.run([sys.executable, str(script), str(tmp_path), str(every)], check=True)
    numbered = sorted((path for path in tmp_path.iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    assert len(numbered) > 100 / every
    for root in numbered:
        store = Store.open(root, filesystem=UnsyncedFileSystem())
        check_sound(store)
        damaged = {problem.path.name for problem in store.verify().problems}
        assert damaged <= {next(iter(NEW.parts))}, "only what the test had damaged"
        work(store)
        check_complete(store)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "store"
    prepare(root)
    return root


def operations_of_the_work(template: Path, folder: Path) -> list[str]:
    names: list[str] = []
    filesystem = CountingFileSystem(lambda name, *_: names.append(name))
    work(Store.open(shutil.copytree(template, folder / "counted"), filesystem=filesystem))
    return names


@EVERY
@pytest.mark.parametrize(
    ("code", "names", "once"),
    [
        pytest.param(errno.ENOSPC, GROWING, False, id="the disk fills up and stays full"),
        pytest.param(errno.EROFS, CHANGING, False, id="the disk becomes read-only"),
        pytest.param(errno.EIO, frozenset(OPERATIONS), True, id="one operation fails"),
    ],
)
def test_a_failing_disk_gives_a_store_error_or_extra_work(
    template: Path, tmp_path: Path, code: int, names: frozenset[str], once: bool, every: int
) -> None:
    done = operations_of_the_work(template, tmp_path)
    numbers = [number for number, name in enumerate(done, 1) if name in names][::every]
    refused = 0
    for at in numbers:
        root = shutil.copytree(template, tmp_path / str(at))
        filesystem = failing(code, at, names, once=once)
        try:
            store = Store.open(root, filesystem=filesystem)
            work(store)
        except StoreError as error:
            refused += 1
            assert str(root) in str(error)
            assert code == errno.EIO or (os.strerror(code) in str(error) and "--cache-dir" in str(error))
        filesystem.before = lambda *_: None  # the disk works again
        store = Store.open(root, filesystem=filesystem)
        if code == errno.ENOSPC:
            assert [path for path in root.joinpath("tmp").rglob("*") if path.is_file()] == []
        store.gc(grace_seconds=0)
        check_sound(store)
        work(store)
        check_complete(store)
        shutil.rmtree(root)
    assert refused > len(numbers) / 4


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    store = Store.open(tmp_path, filesystem=failing(errno.ENOSPC, 0, frozenset({"write"}), once=False))
    with pytest.raises(StoreError, match=rf"{tmp_path}.*No space left.*cache gc.*--cache-dir"):
        store.put_bytes(b"data")


def test_a_store_on_a_read_only_disk_still_serves_its_results(tmp_path: Path) -> None:
    action = put(Store.open(tmp_path), "one", b"data")
    store = Store.open(tmp_path, filesystem=failing(errno.EROFS, 0, CHANGING - {"make_folder"}, once=False))
    assert store.get_action(action.key) == action
    with pytest.raises(StoreError, match="make it writable"):
        store.put_bytes(b"other")


def test_an_object_that_may_not_be_read_is_an_error_not_a_miss(tmp_path: Path) -> None:
    action = put(Store.open(tmp_path), "one", b"data")
    store = Store.open(tmp_path, filesystem=failing(errno.EACCES, 0, frozenset({"read", "stat"}), once=False))
    with pytest.raises(StoreError, match="can't read the store"):
        store.read_bytes(action.outputs["graph"])
    with pytest.raises(StoreError, match="can't read the store"):
        store.get_action(action.key)


def test_a_refused_rename_over_an_equal_object_counts_as_published(tmp_path: Path) -> None:
    store = Store.open(tmp_path, filesystem=failing(errno.EACCES, 0, frozenset({"replace"}), once=False))
    path = store.object_path(make_action("x", b"data").outputs["graph"])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"data")
    with store.writer() as writer:
        writer.write(b"data")
        assert store.object_path(writer.commit()) == path
    assert list(tmp_path.joinpath("tmp").glob("*/*")) == []


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    tmp_path.joinpath("cache").write_text("")
    with pytest.raises(StoreError, match="can't create the store"):
        Store.open(tmp_path / "cache")
