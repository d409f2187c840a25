"""Staging folders: an output is put together beside its place, on the same disk, so that renames publish it.

A staging folder is named after the process that makes it and holds an empty file whose name has the folder's inode
number. No folder that was copied, unpacked or made by somebody else has that, so only our own are ever removed. What
is staged lies in a folder inside, which as a whole can become a new output.

Into an output that exists, files go under a journal, kept in it until all are there. An output may come from anywhere,
so a journal is believed only if it names a staging folder beside the output that proves to be the one of which it was
written, and only plain paths.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olivelike._files import DISK
from olivelike._untrusted import read_json
from olivelike.engine.output.output_files import explained, is_file, is_link, resolved
from olivelike.errors import StoreError, UsageError
from olivelike.model.records.output import JOURNAL_FILE, FileFacts, is_plain
from olivelike.model.records.reading import from_json, to_json

_KIND = "journal/1"
_CONTENT = "files"


@dataclass(frozen=True)
class Journal:
    """A publication into an existing folder."""

    output: int
    """Inode number of the output folder."""
    staging: str
    """Name of the staging folder."""
    proof: tuple[int, ...]
    """Numbers that only that very folder has."""
    moved: Mapping[str, FileFacts]
    """Size and digest of each file that goes into the output, by relative path, in the order in which they go."""
    replaced: Mapping[str, FileFacts]
    """Files of ours that were there before."""
    gone: Mapping[str, FileFacts]
    """Files of ours that the output no longer has."""

    def to_bytes(self) -> bytes:
        """Serialise as JSON."""
        return json.dumps({"kind": _KIND, **to_json(self)}).encode()


def staging_folder(output: Path) -> Path:
    """Make and return an empty folder for the new files of an output, beside it.

    If `output` is a link, it lies beside what that points to: files can be moved within one disk only. Staging folders
    of processes that no longer live are removed, but for one that a journal needs.
    """
    output = resolved(output)
    journal = read_journal(output)
    with explained(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        _sweep(output, None if journal is None else journal.staging)
        folder = new_name(output)
        folder.mkdir()
        try:
            DISK.close(DISK.create(_mark(folder)))
            content_of(folder).mkdir()
        except OSError:
            _remove(folder)
            raise
    return content_of(folder)


def discard_staging(staging: Path) -> None:
    """Remove a folder from `staging_folder` with what it holds, unless it is published."""
    discard(staging.parent)


def content_of(folder: Path) -> Path:
    """Return where the files of a staging folder lie."""
    return folder / _CONTENT


def new_name(output: Path) -> Path:
    """Return a new path for a staging folder of this process."""
    return output.parent / f"{_prefix(output)}{os.getpid()}-{secrets.token_hex(4)}"


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


def read_journal(output: Path) -> Journal | None:
    """Return the journal in an output folder, `None` if there is none.

    Raises `UsageError` for one that is damaged, or was not written here for this very folder, and `StoreError` if it
    can't be read.
    """
    path = output / JOURNAL_FILE
    if not os.path.lexists(path):
        return None
    try:
        journal = _parse(read_json(path)) if is_file(path) else None
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return None  # Another run has just carried it through.
        raise StoreError(f"can't read {path}: {error.strerror}; make it readable") from error
    except ValueError:
        journal = None
    if journal is not None and _belongs(journal, output):
        return journal
    if not os.path.lexists(path):
        return None
    raise UsageError(
        f"output folder {output} holds the journal of a publication that is damaged, or did not begin here "
        f"({JOURNAL_FILE}: the folder was copied or is someone else's); choose another folder, or remove that "
        "file and run again with --overwrite"
    )


def _parse(content: Any) -> Journal | None:
    if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
        return None
    journal = from_json(Journal, content)
    paths = (path for table in (journal.moved, journal.replaced, journal.gone) for path in table)
    return journal if all(map(is_plain, paths)) else None


def _belongs(journal: Journal, output: Path) -> bool:
    return (
        _pid(output, journal.staging) is not None
        and output.stat().st_ino == journal.output
        and proof(output.parent / journal.staging) == journal.proof
    )


def _sweep(output: Path, keep: str | None) -> None:
    """Remove what dead processes left beside an output.

    A folder without proof stays, unless it is empty: then its process may have died as it began or ended.
    """
    import psutil

    for path in list(output.parent.iterdir()):
        pid = _pid(output, path.name)
        if pid is not None and path.name != keep and not is_link(path) and not psutil.pid_exists(pid):
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
    """Return the process that made a staging folder of this output, by its name."""
    found = re.fullmatch(re.escape(_prefix(output)) + r"([0-9]{1,9})-[0-9a-f]{8}", name)
    return int(found[1]) if found else None
