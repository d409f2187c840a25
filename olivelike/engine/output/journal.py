"""The journal of a publication: what is to be moved into an output folder, kept there until all of it is done.

A folder may come from anywhere, so a journal is believed only if it names a staging folder beside the output that
proves to be the one of which it was written, and only plain paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - the reader looks types up
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import read_json
from olivelike.engine.output.output_files import is_file, is_link
from olivelike.engine.output.staging import is_name, proof
from olivelike.errors import StoreError, UsageError
from olivelike.model.records.output import JOURNAL_FILE, FileFacts, is_plain
from olivelike.model.records.reading import from_json, to_json

if TYPE_CHECKING:
    from pathlib import Path

_KIND = "journal/1"


@dataclass(frozen=True)
class Journal:
    """A publication into an existing folder."""

    output: int
    """Inode number of the output folder."""
    staging: str
    """Name of the staging folder."""
    proof: tuple[int, ...]
    """What only that very folder has."""
    moved: Mapping[str, FileFacts]
    """Size and digest of each file that goes into the output, by relative path, in the order in which they go."""
    replaced: Mapping[str, FileFacts]
    """Those of the files of ours that were there before."""
    gone: Mapping[str, FileFacts]
    """Those of the files of ours that the output no longer has."""

    def to_bytes(self) -> bytes:
        """Serialise as JSON."""
        return json.dumps({"kind": _KIND, **to_json(self)}).encode()


def read_journal(output: Path) -> Journal | None:
    """Return the journal in an output folder, `None` if there is none.

    Raises:
        UsageError: for one that is damaged, or was not written here for this very folder.
        StoreError: if it can't be read.
    """
    path = output / JOURNAL_FILE
    if not is_file(path) and not is_link(path) and not path.exists():
        return None
    try:
        journal = _parse(read_json(path)) if is_file(path) else None
    except FileNotFoundError:
        return None  # Another run has just carried it through.
    except OSError as error:
        raise StoreError(f"can't read {path}: {error.strerror}; make it readable") from error
    except ValueError:
        journal = None
    if journal is None or not _belongs(journal, output):
        if not is_link(path) and not path.exists():
            return None
        raise UsageError(
            f"output folder {output} holds the journal of a publication that is damaged, or did not begin here "
            f"({JOURNAL_FILE}: the folder was copied or is someone else's); choose another folder, or remove that "
            "file and run again with --overwrite",
        )
    return journal


def _belongs(journal: Journal, output: Path) -> bool:
    staging = output.parent / journal.staging
    return (
        is_name(output, journal.staging)
        and output.stat().st_ino == journal.output
        and proof(staging) == journal.proof
    )


def _parse(content: Any) -> Journal | None:
    if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
        return None
    journal = from_json(Journal, content)
    tables = (journal.moved, journal.replaced, journal.gone)
    return journal if all(map(is_plain, (path for table in tables for path in table))) else None
