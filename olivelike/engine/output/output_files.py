"""Files of an output folder: whether they are still as recorded, and writing one."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike import _files
from olivelike._files import DISK, file_identity
from olivelike.digest import digest_file
from olivelike.model.records.output import FileFacts, OutputRecord

if TYPE_CHECKING:
    from olivelike.engine.plan.node import Node
    from olivelike.store import Store

_HINTS = "output"
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


class OutputStates:
    """Tells whether output folders already hold what a key stands for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: dict[Path, OutputRecord | None] = {}

    def __call__(self, node: Node, key: str) -> bool:
        """Tell whether the folder of a `materialize` node's output holds the result of `key`."""
        assert node.output is not None
        path, record = node.output.path, self.record(node)
        component = record.components.get(node.component) if record is not None else None
        if record is None or component is None or component.key != key:
            return False
        return is_current(path, record, record.component_files(node.component), self._store)

    def record(self, node: Node) -> OutputRecord | None:
        """Return the record of a node's output, as it was when it was first asked for."""
        assert node.output is not None
        path = node.output.path
        if path not in self._records:
            self._records[path] = OutputRecord.read(path)
        return self._records[path]


def is_current(folder: Path, record: OutputRecord, paths: Iterable[str], store: Store) -> bool:
    """Tell whether each of `paths` is as recorded.

    A file whose size and times are those that were seen when it was last known to be right is taken as right;
    any other one is hashed.
    """
    return all(is_right(folder / path, record.files[path], store) for path in paths)


def remember(path: Path, store: Store, sha256: str) -> None:
    """Note that the file at `path` was just written, or just hashed, with this digest."""
    store.remember_json(_HINTS, str(path), [sha256, *_stamp(path)])


def is_right(path: Path, recorded: FileFacts, store: Store) -> bool:
    """Tell whether one file is as recorded."""
    try:
        status = path.stat()
        if status.st_size != recorded.size or not stat.S_ISREG(status.st_mode):
            return False
        if store.recall_json(_HINTS, str(path)) == [recorded.sha256, *_stamp(path)]:
            return True
        if digest_file(path) != recorded.sha256:
            return False
    except OSError:
        return False
    if store.writable:
        remember(path, store, recorded.sha256)
    return True


def _stamp(path: Path) -> list[int]:
    return list(file_identity(path.stat()))
