"""Publishing: finished files replace those of an output folder all at once, as far as a file system allows.

Everything is written into a staging folder beside the output first. A new output is one rename. Into an
existing one, files are moved under a journal: a killed process leaves either the old folder, or a journal that
the next run carries through.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from typing import TYPE_CHECKING, Any

from olivelike.errors import StoreError, UsageError
from olivelike.output.record import RECORD_FILE, OutputRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOURNAL_FILE = ".olivelike-journal.json"
_PUBLISHING = "publishing-"


def staging_folder(output: Path) -> Path:
    """Make and return an empty staging folder beside `output`, named after this process.

    Staging folders of processes that no longer live are removed. If `output` is a link, the folder lies beside
    what it points to: files can be moved within one disk only.
    """
    output = output.resolve()
    with explained(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(output)
        staging = output.parent / f"{_prefix(output)}{os.getpid()}-{secrets.token_hex(4)}"
        staging.mkdir()
    return staging


def check_is_ours(output: Path) -> None:
    """Refuse to write into a folder that holds something else.

    Raises:
        UsageError: when `output` is a file, or a folder with files but without our record.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"output {output} is a file; name a folder")
    if (output / JOURNAL_FILE).exists():  # Left by a killed process; the record comes last.
        return
    with explained(output):
        foreign = output.is_dir() and any(output.iterdir()) and OutputRecord.read(output) is None
    if foreign:
        raise UsageError(
            f"output folder {output} holds files that olivelike did not write (it has no readable {RECORD_FILE}); "
            "choose another folder, or empty this one",
        )


def write_file(path: Path, data: bytes) -> None:
    """Write a small file durably, making its folder."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def publish(staging: Path, output: Path, record: OutputRecord, before: OutputRecord | None) -> None:
    """Move what `staging` holds into `output`, and remove what `before` recorded and `record` does not.

    Args:
        staging: From `staging_folder`; every file in it belongs to the output. Gone afterwards.
        output: The output folder; need not exist.
        record: What the output holds then.
        before: What it held, if it existed.

    Raises:
        StoreError: when the disk is full or read-only; the output is as it was, or `recover` completes it.
    """
    output = output.resolve()
    write_file(staging / RECORD_FILE, record.to_bytes())
    with explained(output):
        _sync_folders(staging)
        if not output.exists():
            staging.rename(output)
            _sync_folder(output.parent)
            return
        moved = sorted(path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file())
        moved.remove(RECORD_FILE)
        gone = sorted(set(before.files if before else ()) - set(record.files))
        publishing = staging.with_name(f"{_prefix(output)}{_PUBLISHING}{secrets.token_hex(4)}")
        journal = {"staging": publishing.name, "moved": [*moved, RECORD_FILE], "gone": gone}
        write_file(staging / JOURNAL_FILE, json.dumps(journal).encode())
        # From here on the files belong to the journal: whoever discards the staging folder must not find them.
        staging.rename(publishing)
        try:
            (publishing / JOURNAL_FILE).replace(output / JOURNAL_FILE)
        except OSError:
            shutil.rmtree(publishing, ignore_errors=True)
            raise
        _sync_folder(output)
        _carry_through(output, journal)


def recover(output: Path) -> bool:
    """Carry a publication through that a killed process left half done; tell whether there was one."""
    output = output.resolve()
    journal = _read_journal(output)
    if journal is None:
        return False
    with explained(output):
        _carry_through(output, journal)
    return True


def _carry_through(output: Path, journal: dict[str, Any]) -> None:
    staging = output.parent / journal["staging"]
    for relative in journal["moved"]:
        target = output / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # moved before, by a process that was killed
            (staging / relative).replace(target)
    for relative in journal["gone"]:
        (output / relative).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (output / relative).parent.rmdir()
    _sync_folders(output)
    (output / JOURNAL_FILE).unlink(missing_ok=True)
    shutil.rmtree(staging, ignore_errors=True)


def _read_journal(output: Path) -> dict[str, Any] | None:
    try:
        journal: dict[str, Any] = json.loads((output / JOURNAL_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"can't read {output / JOURNAL_FILE}: {error.strerror}; make it readable") from error
    except ValueError as error:
        raise StoreError(f"{output / JOURNAL_FILE} is damaged; remove it and run again") from error
    return journal


def _prefix(output: Path) -> str:
    return f".{output.name}.staging-"


def _remove_stale(output: Path) -> None:
    import psutil

    journal = _read_journal(output) or {"staging": None}
    for path in list(output.parent.iterdir()):
        if not path.name.startswith(_prefix(output)) or path.name == journal["staging"]:
            continue
        pid = path.name.removeprefix(_prefix(output)).partition("-")[0]
        if not pid.isdigit() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _sync_folders(root: Path) -> None:
    for path in (root, *(path for path in root.rglob("*") if path.is_dir())):
        _sync_folder(path)


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # Windows can't open folders, and needs no such call.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
