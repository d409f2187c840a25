"""The gate where files of an output are written: which names they may have, and what a staging folder may hold.

A name may come from a stored table that another machine made, or from a cluster's worker. Whoever has read it, no file
is staged or published but through here.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from olivelike._text import listed
from olivelike._untrusted import one_line
from olivelike.engine.output.output_files import is_file, is_link, obstacle, write_file
from olivelike.errors import PassError
from olivelike.model.records.output import JOURNAL_FILE, RECORD_FILE, FileFacts, is_plain
from olivelike.model.records.users_files import USERS_FILES

_OURS = ".olivelike-"
"""How names of what we keep beside an output's files begin."""
_LONGEST_PART = 255
"""Bytes of a name, without its folders, that file systems take."""
_SHOWN = 5


def wrong_name(names: Iterable[str]) -> str | None:
    """Return which of the names of an output's files is none or clashes with another, and why; else `None`.

    Names that differ in case or in how accents are spelled are one on some systems.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not is_plain(name) or any(len(part.encode()) > _LONGEST_PART for part in name.split("/")):
            return f"{_shown(name)} is no plain path below the output"
        folded = _folded(name)
        if folded in map(_folded, USERS_FILES):
            return f"{_shown(name)} is the user's own"
        if folded in (RECORD_FILE, JOURNAL_FILE) or any(part.startswith(_OURS) for part in folded.split("/")):
            return f"{_shown(name)} is kept for olivelike's own records"
        if folded in seen:
            return f"{_shown(name)} is there twice" + ("" if seen[folded] == name else f", also as {seen[folded]}")
        seen[folded] = name
    for folded, name in seen.items():
        above = folded.rpartition("/")[0]
        while above:
            if above in seen:
                return f"{_shown(name)} lies in {_shown(seen[above])}, which is a file"
            above = above.rpartition("/")[0]
    return None


def stage(staging: Path, relative: str, data: bytes) -> None:
    """Write a file of an output into its staging folder.

    Raises `PassError` if it has no name that a file of an output may have, or something lies there already, and
    `StoreError` if the disk refuses.
    """
    wrong = wrong_name([relative])
    if wrong is None and obstacle(staging, relative) is not None:
        wrong = f"{_shown(relative)} leads through a link or a file"
    if wrong is None and os.path.lexists(staging / relative):
        wrong = f"{_shown(relative)} was made by another step already"
    if wrong is not None:
        raise _refused(wrong)
    write_file(staging / relative, data)


def check_staged(staging: Path, files: Mapping[str, FileFacts]) -> list[str]:
    """Return the relative paths of what is staged, sorted, once all of it may be published.

    Raises `PassError` if a name is wrong, or something is staged that is no file of the output, or not of that size.

    Args:
        staging: The folder, without the output's record.
        files: What the record is going to say, also of files that are in the output already.
    """
    if (wrong := wrong_name(files)) is not None:
        raise _refused(wrong)
    staged: list[str] = []
    strange: list[str] = []
    for folder, names, others in os.walk(staging):
        paths = [Path(folder, name) for name in (*names, *others)]
        for path in (path for path in paths if is_link(path) or not path.is_dir()):
            relative = path.relative_to(staging).as_posix()
            known = relative in files and is_file(path) and path.stat().st_size == files[relative].size
            (staged if known else strange).append(relative)
    if strange:
        shown = listed([_shown(name) for name in sorted(strange)], _SHOWN)
        raise _refused(f"{shown}: a step has left there what it did not report")
    return sorted(staged)


def _refused(wrong: str) -> PassError:
    return PassError(
        f"a file can't go into the output: {wrong}; nothing was published. Run again with --clean-cache, without "
        "a shared store or cluster that you do not trust"
    )


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _shown(name: object) -> str:
    return one_line(ascii(name)[1:-1] if isinstance(name, str) and not name.isprintable() else str(name))[:100]
