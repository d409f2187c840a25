"""Files of an output folder: whether one is still as recorded, and writing one."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from olivelike import _files
from olivelike._files import DISK
from olivelike.digest import digest_file
from olivelike.model.records.output import FileFacts

_JUNCTION = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)


def resolved(output: Path) -> Path:
    """Return where an output really lies, links followed; it need not exist."""
    return Path(os.path.realpath(output))


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


def explained(path: Path) -> contextlib.AbstractContextManager[None]:
    """Raise `StoreError`, with a remedy, for an `OSError` inside the block; `path` stands for one that is not named."""
    return _files.explained("write to the output", path, "choose another folder with --output")
