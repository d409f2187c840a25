"""Files that are whole or absent, and locks, on this system and as Windows would have them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from olivelike import _files
from olivelike._files import FileSystem, NewFile, drop_lock, explained, held, try_lock, write_whole
from olivelike.errors import StoreError


@pytest.fixture(params=["posix", "nt"])
def system(request, monkeypatch):
    monkeypatch.setattr(_files, "WINDOWS", request.param == "nt")
    return request.param


class Watching(FileSystem):
    """Asks, when a lock's file is removed, whether somebody else could take it."""

    def __init__(self):
        self.free_to_others = []

    def remove(self, path):
        lock = try_lock(path)
        self.free_to_others.append(lock is not None)
        if lock is not None:
            lock.release()
        path.unlink()


def test_the_file_of_a_lock_goes_as_the_system_allows_and_a_held_one_stays(tmp_path, system):
    path, disk = tmp_path / "key.lock", Watching()
    drop_lock(path, disk)
    assert disk.free_to_others == [system == "nt"]
    assert not path.exists()
    lock = try_lock(path)
    drop_lock(path, disk)
    assert path.exists()
    lock.release()


def test_a_lock_is_waited_for_with_an_end_and_may_leave_no_file(tmp_path, system):
    path = tmp_path / "lock"
    with held(path, leaves_file=False):
        with pytest.raises(TimeoutError, match="another process holds it"), held(path, timeout=0.05):
            pytest.fail("it is held")
        assert path.exists()
    assert not path.exists()
    with held(path, timeout=0.0):
        pass
    assert path.exists()


def test_a_lock_file_that_another_has_open_stays_on_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "WINDOWS", True)
    monkeypatch.setattr(FileSystem, "remove", raising(PermissionError(errno.EACCES, "in use")))
    with held(tmp_path / "lock", leaves_file=False):
        pass
    assert (tmp_path / "lock").exists()


def raising(error):
    def operation(*_arguments, **_options):
        raise error

    return operation


def test_a_file_is_whole_under_its_name_and_nothing_else_is_left(tmp_path, system):
    path = tmp_path / ("n" * 250)
    write_whole(path, b"first")
    write_whole(path, b"second", durable=False)
    assert path.read_bytes() == b"second"
    with pytest.raises(FileExistsError):
        write_whole(path, b"third", overwrite=False)
    write_whole(tmp_path / "private", b"", mode=0o600)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert {one.name for one in tmp_path.iterdir()} == {path.name, "private"}


@pytest.mark.parametrize("operation", ["write", "sync", "close", "replace", "sync_folder"])
def test_a_refusal_leaves_what_was_there(tmp_path, monkeypatch, operation):
    path = tmp_path / "file"
    write_whole(path, b"old")
    monkeypatch.setattr(FileSystem, operation, raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == (b"new" if operation == "sync_folder" else b"old")
    assert list(tmp_path.iterdir()) == [path]


def test_a_rename_that_a_scanner_delays_is_tried_again_on_windows_alone(tmp_path, system, monkeypatch):
    refusals = [PermissionError(errno.EACCES, "in use")] * 3
    real = Path.replace

    def replace(source, target):
        if refusals:
            raise refusals.pop()
        return real(source, target)

    monkeypatch.setattr(Path, "replace", replace)
    if system == "nt":
        write_whole(tmp_path / "file", b"data")
        assert (tmp_path / "file").read_bytes() == b"data"
    else:
        with pytest.raises(PermissionError):
            write_whole(tmp_path / "file", b"data")


def test_a_rename_that_is_refused_for_good_is_an_error_on_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "WINDOWS", True)
    monkeypatch.setattr(_files, "_REPLACE_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(Path, "replace", raising(PermissionError(errno.EACCES, "in use")))
    with pytest.raises(PermissionError):
        write_whole(tmp_path / "file", b"data")
    assert list(tmp_path.iterdir()) == []


def test_windows_syncs_no_folder_and_changes_no_mode(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "WINDOWS", True)
    tmp_path.chmod(0o755)
    FileSystem().sync_folder(tmp_path / "absent")
    FileSystem().set_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_name_is_taken_once_with_or_without_hard_links(tmp_path, monkeypatch):
    for links in (True, False):
        if not links:
            monkeypatch.setattr(Path, "hardlink_to", raising(OSError(errno.EPERM, "no links")))
        path = tmp_path / f"file {links}"
        write_whole(path, b"one", overwrite=False)
        with pytest.raises(FileExistsError):
            write_whole(path, b"two", overwrite=False)
        assert path.read_bytes() == b"one"
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_finished_takes_no_more(tmp_path):
    with NewFile(tmp_path / "temporary") as file:
        file.finish()
        with pytest.raises(ValueError, match="published already"):
            file.write(memoryview(b"more"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free some space"), (errno.EFBIG, "free some space"), (errno.EROFS, "make it writable"),
        (errno.EACCES, "make it writable"), (errno.EIO, "check the disk"), (errno.ENOENT, "look at that path"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_with_place_reason_and_remedy(code, remedy):
    told = f"can't write the page: /place: {os.strerror(code)}; {remedy}, or choose another folder"
    with pytest.raises(StoreError) as raised, explained("write the page", Path("/place"), "choose another folder"):
        raise OSError(code, os.strerror(code))
    assert str(raised.value) == told
    with pytest.raises(StoreError, match="/named:"), explained("write", Path("/place"), "choose another folder"):
        raise OSError(code, os.strerror(code), "/named")


def test_nothing_half_written_is_left_when_the_user_interrupts(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "hardlink_to", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a", b"1", overwrite=False)
    assert not list(tmp_path.iterdir())
