"""Entries of a shelf: whole or absent, and believed only if they are what they say."""

from __future__ import annotations

import errno
import lzma
import os
import threading

import pytest

from olivelike._files import DISK
from olivelike.digest import digest_bytes
from olivelike.errors import StoreError
from olivelike.graphs.shelf import Damage, Entry, ShelfFolder

QUESTION = "ab" * 32
ANSWER = b"an answer " * 100


def entry(**changes) -> Entry:
    fields = {
        "kind": "graph", "question": QUESTION, "component": "unet", "class_name": "UNet2DConditionModel",
        "about": "a test", "digest": digest_bytes(ANSWER), "size": len(ANSWER), **changes,
    }  # fmt: skip
    return Entry(**fields)


@pytest.fixture
def folder(tmp_path) -> ShelfFolder:
    return ShelfFolder(tmp_path / "shelf")


def test_an_answer_comes_back_as_it_was_written(folder):
    path = folder.write(entry(), ANSWER)
    assert folder.read("graph", QUESTION) == ANSWER
    assert list(folder.entries()) == [(path, entry())]


def test_what_is_not_there_is_no_answer(folder):
    assert folder.read("graph", QUESTION) is None
    assert list(folder.entries()) == []
    folder.write(entry(), ANSWER)
    assert folder.read("names", QUESTION) is None
    assert folder.read("graph", "cd" * 32) is None


def test_an_entry_of_another_version_is_not_asked_but_listed(folder):
    folder.write(entry(version=99), ANSWER)
    assert folder.read("graph", QUESTION) is None
    assert [found.version for _, found in folder.entries()] == [99]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-20], "damaged"),
        (lambda data: data[:-20] + bytes(20), "damaged"),
        (lambda data: b"", "is no entry of a shelf"),
        (lambda data: b"{}\n", "is no entry of a shelf"),
        (lambda data: b"[" * 5000 + b"\n", "is no entry|is damaged"),
        (lambda data: data.partition(b"\n")[0] + b"\n" + lzma.compress(b"another"), "not the SHA-256"),
        (lambda data: data.replace(b'"kind"', b'"kinds"', 1), "damaged"),
    ],
)
def test_a_damaged_entry_is_told_with_its_file(folder, change, reason):
    path = folder.write(entry(), ANSWER)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Damage, match=reason) as caught:
        folder.read("graph", QUESTION)
    assert str(path) in str(caught.value)
    ((_, found),) = folder.entries()
    assert isinstance(found, Damage)


def test_a_first_line_of_other_kinds_of_values_is_damage(folder):
    path = folder.write(entry(), ANSWER)
    path.write_bytes(path.read_bytes().replace(b'"a test"', b'["a test"]', 1))
    with pytest.raises(Damage, match="another kind"):
        folder.read("graph", QUESTION)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_shared_folder_that_cannot_be_read_is_told_and_harms_nothing(folder, number, monkeypatch):
    folder.write(entry(), ANSWER)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("olivelike.graphs.shelf.shelf_folder.open_file", refuse)
    monkeypatch.setattr(type(DISK), "names", refuse)
    with pytest.raises(Damage, match="can't be read"):
        folder.read("graph", QUESTION)
    ((path, found),) = folder.entries()
    assert (path, type(found)) == (folder.path, Damage)


def test_a_shelf_whose_folder_is_a_file_holds_nothing(tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert ShelfFolder(tmp_path / "file").read("graph", QUESTION) is None
    assert list(ShelfFolder(tmp_path / "file").entries()) == []


def test_a_bomb_does_not_fill_the_memory(folder):
    path = folder.write(entry(), ANSWER)
    head = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(head + b"\n" + lzma.compress(bytes(100 << 20), preset=1))
    with pytest.raises(Damage):
        folder.read("graph", QUESTION)


def test_a_pipe_in_place_of_an_entry_does_not_stop_the_run(folder):
    path = folder.write(entry(), ANSWER)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Damage, match="pipe"):
        folder.read("graph", QUESTION)


def test_many_writers_of_one_answer_leave_it_whole(folder):
    threads = [threading.Thread(target=folder.write, args=(entry(), ANSWER)) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert folder.read("graph", QUESTION) in (None, ANSWER)
    assert folder.read("graph", QUESTION) == ANSWER
    assert [path.name for path in folder.path.iterdir()] == [entry().file_name]


def test_a_folder_that_is_a_file_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "shelf").write_text("no folder")
    with pytest.raises(StoreError, match="--shelf"):
        ShelfFolder(tmp_path / "shelf").write(entry(), ANSWER)
