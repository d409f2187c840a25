"""Whether the files of an output folder are still those that its record says."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from olivelike.digest import digest_file
from olivelike.model.records.output import OutputRecord

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from olivelike.engine.plan import Node
    from olivelike.model.records.output import FileFacts
    from olivelike.store import Store

_HINTS = "output"


class OutputStates:
    """Tells whether output folders already hold what a key stands for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: dict[Path, OutputRecord | None] = {}

    def __call__(self, node: Node, key: str) -> bool:
        """Tell whether the folder of a `materialize` node's output holds the result of `key`."""
        assert node.output is not None
        path = node.output.path
        if path not in self._records:
            self._records[path] = OutputRecord.read(path)
        record = self._records[path]
        component = record.components.get(node.component) if record is not None else None
        if record is None or component is None or component.key != key:
            return False
        return is_current(path, record, record.component_files(node.component), self._store)


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
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
