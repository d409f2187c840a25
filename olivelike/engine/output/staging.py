"""Staging folders: an output is put together beside its place, on the same disk, so that renames publish it.

A staging folder is named after the process that makes it and holds an empty file whose name has the folder's inode
number. No folder that was copied, unpacked or made by somebody else has that, so only our own are ever removed. What
is staged lies in a folder inside, which as a whole can become a new output.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING

from olivelike.engine.output.output_files import DISK, explained, is_file, is_link

if TYPE_CHECKING:
    from pathlib import Path

_CONTENT = "files"


def make_staging(output: Path, keep: str | None) -> Path:
    """Make and return an empty folder beside `output`, which must be resolved, for its new files.

    Staging folders of processes that no longer live are removed, but for the one named `keep`.
    """
    with explained(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        _sweep(output, keep)
        folder = new_name(output)
        folder.mkdir()
        try:
            DISK.close(DISK.create(_mark(folder)))
            content_of(folder).mkdir()
        except OSError:
            _remove(folder)
            raise
    return content_of(folder)


def content_of(folder: Path) -> Path:
    """Return where the files of a staging folder lie."""
    return folder / _CONTENT


def new_name(output: Path) -> Path:
    """Return a new path for a staging folder of this process."""
    return output.parent / f"{_prefix(output)}{os.getpid()}-{secrets.token_hex(4)}"


def is_name(output: Path, name: str) -> bool:
    """Tell whether a name is one of a staging folder of this output."""
    return _pid(output, name) is not None


def proof(folder: Path) -> tuple[int, int] | None:
    """Return what only this very folder has, where it is; `None` if it is no staging folder of ours.

    An archive or a copy may take over any content, but neither inode numbers nor, but on Windows, times of change.
    """
    try:
        if is_link(folder) or not is_file(_mark(folder)):
            return None
        status = _mark(folder).lstat()
    except OSError:
        return None
    return (status.st_ino, status.st_ctime_ns) if status.st_size == 0 else None


def discard(folder: Path) -> None:
    """Remove a staging folder, the proof that it is one last; what can't be removed is left to later sweeps."""
    if proof(folder) is None:
        return
    with contextlib.suppress(OSError):
        mark = _mark(folder)
        for path in list(folder.iterdir()):
            if path != mark:
                DISK.remove(path)
        mark.unlink()
        folder.rmdir()


def _sweep(output: Path, keep: str | None) -> None:
    """Remove what dead processes left beside an output.

    A folder without proof stays, unless it is empty: then its process may have died as it began or ended.
    """
    import psutil

    for path in list(output.parent.iterdir()):
        pid = _pid(output, path.name)
        if pid is None or path.name == keep or is_link(path) or psutil.pid_exists(pid):
            continue
        _remove(path)


def _remove(folder: Path) -> None:
    discard(folder)
    with contextlib.suppress(OSError):  # It may be gone, or not be ours.
        folder.rmdir()


def _mark(folder: Path) -> Path:
    return folder / f".olivelike-staging-{folder.lstat().st_ino}"


def _prefix(output: Path) -> str:
    return f".{output.name}.staging-"


def _pid(output: Path, name: str) -> int | None:
    found = re.fullmatch(r"([0-9]{1,9})-[0-9a-f]{8}", name.removeprefix(_prefix(output)))
    return int(found[1]) if found and name.startswith(_prefix(output)) else None
