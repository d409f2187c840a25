"""Files of an output folder: whether one is still as recorded, and writing one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from olivelike._files import FileSystem
from olivelike.digest import digest_file
from olivelike.errors import StoreError
from olivelike.model.records.output import FileFacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK = FileSystem()
"""The store's own operations: renames that wait for Windows, folders that some file systems can't sync."""

_JUNCTION = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)


def is_link(path: Path) -> bool:
    """Tell whether a path is a symbolic link, or a junction of Windows."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION
    return False


def is_file(path: Path) -> bool:
    """Tell whether there is a regular file at a path, and no link to one."""
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def obstacle(folder: Path, relative: str) -> str | None:
    """Return the first part of a path that is no folder but a link or a file, `None` if a file may be made there."""
    parts = relative.split("/")[:-1]
    for number in range(1, len(parts) + 1):
        path = folder.joinpath(*parts[:number])
        if is_link(path) or (path.exists() and not path.is_dir()):
            return "/".join(parts[:number])
    return None


def holds(path: Path, facts: FileFacts) -> bool:
    """Tell whether a regular file is as recorded."""
    try:
        return is_file(path) and path.stat().st_size == facts.size and digest_file(path) == facts.sha256
    except OSError:
        return False


def facts_of(path: Path) -> FileFacts:
    """Return size and digest of a file."""
    return FileFacts(path.stat().st_size, digest_file(path))


def write_file(path: Path, data: bytes) -> None:
    """Write a small file durably, making its folder."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            DISK.sync(file.fileno())


def sync_folders(root: Path) -> None:
    """Make the names in a folder, and in all below it, durable."""
    for parent, _, _ in os.walk(root):
        DISK.sync_folder(root.joinpath(parent))


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the file system's errors into ours, with a remedy.

    Raises:
        StoreError: for any `OSError` in the block.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            remedy = "free some space, or choose another folder with --output"
        elif error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            remedy = "choose a folder that you may write to with --output"
        else:
            remedy = "choose another folder with --output"
        raise StoreError(f"can't write to {path}: {error.strerror or error}; {remedy}") from error
