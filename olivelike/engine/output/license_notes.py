"""Licences of what an output is made of, held against what it is for: passing on to others."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from olivelike._text import listed
from olivelike.model.licenses import terms_of
from olivelike.model.records.output import OutputRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from olivelike.model.licenses import Terms
    from olivelike.model.records.origin import Origin

_SHOWN = 5


def passing_on(origins: Iterable[Origin], what: str) -> Iterator[str]:
    """Yield what licences forbid or ask of whoever passes an output on, each licence once.

    Args:
        origins: Of all that it is made of.
        what: Which option or command is for passing it on.
    """
    under: dict[str, dict[str, None]] = defaultdict(dict)
    for origin in origins:
        if origin.license is not None:
            under[origin.license.name][origin.place] = None
    for name, places in under.items():
        terms = terms_of(name)
        if terms is not None and (says := "; ".join(_says(terms))):
            are = "is" if len(places) == 1 else "are"
            yield f"{what} is for others to use, and {', '.join(places)} {are} under {name}: {says}"


def folder_notes(folder: Path, what: str) -> Iterator[str]:
    """Yield the same for a folder, with what nothing says the licence of; nothing for what is no output."""
    record = OutputRecord.read(folder)
    if record is None:
        return
    origins = [origin for _, origin in record.origins]
    yield from passing_on(origins, what)
    if unknown := unknown_licenses(origins):
        yield (
            f"no file says the licence of {listed(unknown, _SHOWN)}; say it with `license:` in the workflow, and run "
            "that again"
        )


def _says(terms: Terms) -> Iterator[str]:
    if not terms.commercial:
        yield "it allows no commercial use: tell whoever gets the result, or ask its owner for another licence"
    if terms.limit is not None:
        yield f"it allows commercial use to {terms.limit}"
    if terms.restrictions:
        yield "it forbids some uses, and whoever gets the result must be bound to that: put its text beside it"
    if not terms.derivatives:
        yield "it forbids passing changed weights on"


def unknown_licenses(origins: Iterable[Origin]) -> list[str]:
    """Return the names of what no file and no workflow says the licence of, each once."""
    return list(dict.fromkeys(origin.name for origin in origins if origin.license is None))
