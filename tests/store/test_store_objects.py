"""Objects: what is put comes back, whole or not at all."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from olivelike.errors import StoreError
from olivelike.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def test_bytes_come_back_under_their_sha256(store: Store) -> None:
    digest = store.put_bytes(b"graph")
    assert digest == hashlib.sha256(b"graph").hexdigest()
    assert store.read_bytes(digest) == b"graph"
    assert store.object_path(digest).read_bytes() == b"graph"
    assert store.put_bytes(b"") == hashlib.sha256(b"").hexdigest()


def test_a_writer_streams_pieces_and_arrays(store: Store) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with store.writer() as writer:
        writer.write(b"head")
        writer.write(memoryview(array))
        writer.write(memoryview(np.zeros((0, 3), np.float32)))
        digest = writer.commit()
    assert store.read_bytes(digest) == b"head" + array.tobytes()


def test_a_writer_without_commit_or_with_an_error_leaves_nothing(store: Store) -> None:
    with store.writer() as writer:
        writer.write(b"half")
    with pytest.raises(KeyError), store.writer() as writer:
        writer.write(b"half")
        raise KeyError
    assert [path for path in store.root.joinpath("tmp").rglob("*") if path.is_file()] == []
    assert not store.root.joinpath("objects").exists()


def test_a_writer_commits_once(store: Store) -> None:
    with store.writer() as writer:
        writer.commit()
        with pytest.raises(ValueError, match="published already"):
            writer.write(b"more")


def test_a_scratch_file_is_moved_and_any_other_is_copied(store: Store, tmp_path: Path) -> None:
    with store.scratch() as folder:
        mine = folder / "tensor"
        mine.write_bytes(b"tensor")
        digest = store.put_file(mine)
        assert not mine.exists()
    assert store.read_bytes(digest) == b"tensor"
    other = tmp_path / "other"
    other.write_bytes(b"other" * 500_000)
    digest = store.put_file(other)
    assert store.read_bytes(digest) == other.read_bytes()


@pytest.mark.parametrize("damage", ["flipped", "truncated", "a folder"])
def test_putting_again_heals_a_damaged_object_every_way(store: Store, tmp_path: Path, damage: str) -> None:
    data = b"graph" * 100

    def put_file() -> None:
        (tmp_path / "file").write_bytes(data)
        store.put_file(tmp_path / "file")

    def put_stream() -> None:
        with store.writer() as writer:
            writer.write(data)
            writer.commit()

    path = store.object_path(store.put_bytes(data))
    for put in (lambda: store.put_bytes(data), put_file, put_stream):
        path.unlink()
        if damage == "a folder":
            path.mkdir()
        else:
            path.write_bytes(b"H" + data[1:] if damage == "flipped" else data[:-1])
        put()
        assert path.read_bytes() == data


def test_a_damaged_object_is_a_miss_and_goes_to_quarantine(store: Store) -> None:
    digest = store.put_bytes(b"graph")
    store.object_path(digest).write_bytes(b"grapf")
    assert store.read_bytes(digest) is None
    assert not store.object_path(digest).exists()
    assert [path.read_bytes() for path in store.root.joinpath("quarantine").iterdir()] == [b"grapf"]
    assert store.put_bytes(b"graph") == digest
    assert store.read_bytes(digest) == b"graph"


def test_a_check_finds_damage_of_equal_size(store: Store) -> None:
    digest = store.put_bytes(b"graph")
    assert store.check_object(digest)
    store.object_path(digest).write_bytes(b"grapf")
    assert not store.check_object(digest)
    assert not store.object_path(digest).exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "ABC", "", "0" * 63, "0" * 65, "G" * 64])
def test_a_name_that_is_no_digest_is_refused(store: Store, name: str) -> None:
    for operation in (store.object_path, store.read_bytes, store.get_action, store.lock):
        with pytest.raises(ValueError, match="SHA-256"):
            operation(name)


def test_an_absent_store_opened_for_reading_is_empty_and_stays_absent(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "cache", create=False)
    digest = "0" * 64
    (tmp_path / "file").write_bytes(b"data")
    assert store.read_bytes(digest) is None
    assert store.get_action(digest) is None
    assert list(store.actions()) == list(store.runs()) == list(store.entries()) == []
    assert store.recall_json("space", "key") is None
    assert store.file_digest(tmp_path / "file") == hashlib.sha256(b"data").hexdigest()
    store.remember_json("space", "key", 1)
    assert store.verify().ok
    assert store.size().total == 0
    assert not store.root.exists()


def test_a_store_opened_for_reading_refuses_to_change(tmp_path: Path) -> None:
    Store.open(tmp_path)
    store = Store.open(tmp_path, create=False)
    for change in (
        lambda: store.put_bytes(b""),
        lambda: store.put_file(tmp_path / "file"),
        store.writer,
        lambda: store.scratch().__enter__(),
        lambda: store.lock("0" * 64).__enter__(),
        lambda: store.live_run("run").__enter__(),
        lambda: store.drop_action("0" * 64),
        lambda: store.unpin("name"),
        lambda: store.verify(repair=True),
        store.gc,
        store.clear,
    ):
        with pytest.raises(StoreError, match="reading only"):
            change()
    assert list(tmp_path.iterdir()) == []
