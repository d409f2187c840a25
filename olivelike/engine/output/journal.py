"""The journal of a publication: what is to be moved into an output folder, kept there until all of it is done.

A folder may come from anywhere, so a journal is believed only if it names a staging folder beside the output that
proves to be the one of which it was written, and only plain paths.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import read_json
from olivelike.engine.output.output_files import is_file, is_link, is_plain
from olivelike.engine.output.staging import is_name, proof
from olivelike.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

JOURNAL_FILE = ".olivelike-journal.json"
_KIND = "journal/1"

Facts = dict[str, Any]


@dataclass(frozen=True)
class Journal:
    """A publication into an existing folder."""

    output: int
    """Inode number of the output folder."""
    staging: str
    """Name of the staging folder."""
    proof: list[int]
    """What only that very folder has."""
    moved: dict[str, Facts]
    """Size and digest of each file that goes into the output, by relative path, in the order in which they go."""
    replaced: dict[str, Facts]
    """Those of the files of ours that were there before."""
    gone: dict[str, Facts]
    """Those of the files of ours that the output no longer has."""

    def to_bytes(self) -> bytes:
        """Serialise as JSON."""
        return json.dumps({"kind": _KIND, **asdict(self)}).encode()


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
    try:
        journal = Journal(**content)
    except TypeError:
        return None
    tables = (journal.moved, journal.replaced, journal.gone)
    sound = isinstance(journal.output, int) and isinstance(journal.staging, str)
    return journal if sound and all(is_file_table(table) for table in tables) else None


def is_file_table(table: object) -> bool:
    """Tell whether a value from JSON gives size and digest for each of some plain paths."""
    return isinstance(table, dict) and all(
        is_plain(path) and _are_facts(facts) for path, facts in table.items()
    )


def _are_facts(facts: object) -> bool:
    return isinstance(facts, dict) and type(facts.get("size")) is int and isinstance(facts.get("sha256"), str)


def facts_alone(facts: Mapping[str, Any]) -> Facts:
    """Return size and digest, without where a file came from."""
    return {"size": facts["size"], "sha256": facts["sha256"]}
