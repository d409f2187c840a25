"""Publishing: finished files replace those of an output folder all at once, as far as a file system allows.

Everything is written into a staging folder beside the output first. A new output is one rename. Into an
existing one, files are moved under a journal: a killed process leaves either the old folder, or a journal that
the next run carries through. No file is replaced or removed that is not as its record says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from olivelike._files import DISK
from olivelike._text import listed
from olivelike.engine.output.file_names import check_staged
from olivelike.engine.output.output_files import (
    explained,
    facts_of,
    holds,
    is_file,
    is_link,
    obstacle,
    resolved,
    sync_folders,
    write_file,
)
from olivelike.engine.output.staging import Journal, content_of, discard, new_name, proof, read_journal
from olivelike.errors import StoreError, UsageError
from olivelike.model.records.output import JOURNAL_FILE, RECORD_FILE, FileFacts, OutputRecord

IsCurrent = Callable[[str, FileFacts], bool]

_SHOWN = 5
"""Most files that a message names."""


@dataclass(frozen=True)
class Existing:
    """Files that lie in an output folder already."""

    output: Path
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    """Facts of each file, by its record."""
    is_current: IsCurrent | None = None
    """Tells whether a file is as recorded; by default its bytes are hashed."""

    def has_ours(self, relative: str) -> bool:
        """Tell whether a path holds what an earlier run wrote there, and nobody has changed since."""
        path, facts = self.output / relative, self.files.get(relative)
        if facts is None or obstacle(self.output, relative) is not None or not is_file(path):
            return False
        return holds(path, facts) if self.is_current is None else self.is_current(relative, facts)


def check_is_ours(output: Path) -> None:
    """Refuse to write into a folder that holds something else.

    Raises `UsageError` when `output` is a file, a folder with files but without our record, or one with a journal that
    is not its own.
    """
    with explained(output):
        if output.exists() and not output.is_dir():
            raise UsageError(f"output {output} is a file; name a folder")
        if read_journal(resolved(output)) is not None:  # Left by a killed process; the record comes last.
            return
        empty = not output.is_dir() or not any(output.iterdir())
    if not empty and (is_link(output / RECORD_FILE) or OutputRecord.read(output) is None):
        raise UsageError(
            f"output folder {output} holds files that olivelike did not write (it has no readable {RECORD_FILE}); "
            "choose another folder, or empty this one"
        )


def check_places(existing: Existing, files: Iterable[str], made: Mapping[str, FileFacts], *, overwrite: bool) -> None:
    """Refuse to write where somebody else's file lies; nothing is touched.

    Raises `UsageError` naming the files, and what to do.

    Args:
        files: What is to be written, by relative path.
        made: Size and digest of those that are finished: such a file may lie there already.
        overwrite: Whether files of ours that were changed may be replaced.
    """
    foreign: list[str] = []
    changed: list[str] = []
    for relative in files:
        path = existing.output / relative
        blocked = obstacle(existing.output, relative)
        if blocked is not None:
            foreign.append(blocked)
        elif not is_link(path) and not path.exists():
            continue
        elif not existing.has_ours(relative) and not (relative in made and holds(path, made[relative])):
            was_ours = relative in existing.files and is_file(path)
            (changed if was_ours else foreign).append(relative)
    if foreign:
        raise UsageError(
            f"output {existing.output} has files or links that olivelike did not make where its own must go: "
            f"{_listed(foreign)}; move them away, or choose another folder with --output"
        )
    if changed and not overwrite:
        raise UsageError(
            f"output {existing.output} has files that were changed since olivelike wrote them: {_listed(changed)}; "
            "move them away to keep them, or replace them with --overwrite"
        )


def publish(
    staging: Path,
    output: Path,
    record: OutputRecord,
    before: OutputRecord | None,
    is_current: IsCurrent | None = None,
    *,
    overwrite: bool = False,
) -> list[str]:
    """Move what `staging` holds into `output`, and remove what `before` recorded and `record` does not.

    Returns files that `record` does not have and `before` has, left alone since they were changed. Raises `PassError`
    when `staging` holds what `record` does not, or a name that no file of an output may have; the output is as it was.
    Raises `UsageError` when somebody else's file is in the way; the output is as it was. Raises `StoreError` when the
    disk is full or read-only; the output is as it was, or `recover` completes it.

    Args:
        staging: From `staging_folder`; every file in it belongs to the output. Gone afterwards.
        output: The output folder; need not exist.
        is_current: Tells whether a file of the output is as recorded; by default its bytes are hashed.
        overwrite: Whether files of ours that were changed may be replaced.
    """
    output, folder = resolved(output), staging.parent
    with explained(output):
        staged = check_staged(staging, record.files)
        write_file(staging / RECORD_FILE, record.to_bytes())
        sync_folders(staging)
        if not output.exists():
            DISK.replace(staging, output)
            DISK.sync_folder(output.parent)
            discard(folder)
            return []
        moved = {path: _facts(record.files[path]) for path in staged}
        existing = Existing(output, before.files if before is not None else {}, is_current)
        check_places(existing, moved, moved, overwrite=overwrite)
        dropped = [path for path in existing.files if path not in record.files]
        gone = [path for path in dropped if existing.has_ours(path)]
        replaced = {
            path: _facts(existing.files[path]) if existing.has_ours(path) else facts_of(output / path)
            for path in (*moved, RECORD_FILE)
            if is_file(output / path)
        }
        moved[RECORD_FILE] = facts_of(staging / RECORD_FILE)
        begun = new_name(output)
        mark = proof(folder)
        if mark is None or (output / JOURNAL_FILE).exists():
            raise StoreError(f"another run writes into {output}, or into {folder}; run again when it has ended")
        journal = Journal(
            output.stat().st_ino, begun.name, mark, moved, replaced,
            {path: _facts(existing.files[path]) for path in gone},
        )  # fmt: skip
        write_file(folder / JOURNAL_FILE, journal.to_bytes())
        # From here on the files belong to the journal: whoever discards the staging folder must not find them.
        DISK.replace(folder, begun)
        try:
            DISK.replace(begun / JOURNAL_FILE, output / JOURNAL_FILE)
        except OSError:
            discard(begun)
            raise
        DISK.sync_folder(output)
        _carry_through(output, begun, moved, gone)
    return sorted(path for path in set(dropped) - set(gone) if is_file(output / path))


def _facts(file: FileFacts) -> FileFacts:
    """Return size and digest, without where a file came from."""
    return FileFacts(file.size, file.sha256)


def recover(output: Path, *, overwrite: bool = False) -> bool:
    """Carry a publication through that a killed process left half done; tell whether there was one.

    Raises `UsageError` when the journal is not one of this folder, or somebody else's file is in the way by now, and
    `StoreError` when the disk refuses. `overwrite` says whether files of ours that were changed since may be
    replaced.
    """
    output = resolved(output)
    with explained(output):
        journal = read_journal(output)
        if journal is None:
            return False
        folder = output.parent / journal.staging
        left = [path for path in journal.moved if _is_staged(folder, path)]
        check_places(Existing(output, journal.replaced), left, journal.moved, overwrite=overwrite)
        gone = [path for path in journal.gone if Existing(output, journal.gone).has_ours(path)]
        _carry_through(output, folder, journal.moved, gone)
    return True


def _carry_through(output: Path, folder: Path, moved: Collection[str], gone: Collection[str]) -> None:
    for relative in moved:
        if _is_staged(folder, relative):  # Else it was moved before, by a process that was killed.
            target = output / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            DISK.replace(content_of(folder) / relative, target)
    for relative in gone:
        (output / relative).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # until one is not empty
            for parent in _folders(output, relative):
                parent.rmdir()
    for touched in sorted({parent for path in (*moved, *gone) for parent in _folders(output, path)}):
        if touched.is_dir():
            DISK.sync_folder(touched)
    DISK.sync_folder(output)
    (output / JOURNAL_FILE).unlink(missing_ok=True)
    discard(folder)


def _is_staged(folder: Path, relative: str) -> bool:
    """Tell whether a staging folder itself holds a file, not something that a link in it leads to."""
    content = content_of(folder)
    return obstacle(folder, f"{content.name}/{relative}") is None and is_file(content / relative)


def _folders(output: Path, relative: str) -> list[Path]:
    """Return the folders that a file lies in below the output, the innermost first."""
    return list((output / relative).parents)[: relative.count("/")]


def _listed(paths: list[str]) -> str:
    return listed(list(dict.fromkeys(paths)), _SHOWN)
