"""`README.md` of an output folder, its model card: which part of it is ours, and of which files it tells."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from olivelike._untrusted import read_bytes
from olivelike.digest import digest_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.model.records.output import OutputRecord

CARD_FILE: Final = "README.md"
"""No file of the output: people write in it, and a run leaves it alone."""
END: Final = "<!-- olivelike: end -->"
_BEGIN: Final = re.compile(r"<!-- olivelike: begin ([0-9a-f]{12}) -->")
_OURS: Final = re.compile(rf"{_BEGIN.pattern}.*?{END}", re.DOTALL)


def begin(record: OutputRecord) -> str:
    """Return the line above our part of a card, which says what the folder held then."""
    held = sorted((path, file.sha256) for path, file in record.files.items())
    return f"<!-- olivelike: begin {digest_bytes(json.dumps(held).encode())[:12]} -->"


def read_card(folder: Path) -> str | None:
    """Return a folder's card; `None` if it has none. Raises `OSError` or `ValueError` if it can't be read."""
    try:
        return read_bytes(folder / CARD_FILE).decode()
    except FileNotFoundError:
        return None


def with_part(card: str, part: str) -> str | None:
    """Return a card with our part of it renewed; `None` if no part is ours."""
    found, times = _OURS.subn(lambda _: part, card, count=1)
    return found if times else None


def is_outdated(card: str, record: OutputRecord) -> bool:
    """Tell whether our part of a card is of other files than those that a folder holds now."""
    found = _BEGIN.search(card)
    return found is not None and found.group() != begin(record)
