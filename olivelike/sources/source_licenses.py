"""Licences where they stand: a card's front matter, a file with the licence's text, a weight file's metadata.

What none of them says is not known, and is not guessed. Sources: the hub's cards
(https://huggingface.co/docs/hub/model-cards), Stability AI's ModelSpec (`modelspec.license`), GGUF's `general.license`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from olivelike._untrusted import one_line, read_bytes
from olivelike.model.licenses import license_id
from olivelike.model.records.card_marks import CARD_FILE
from olivelike.model.records.origin import License

if TYPE_CHECKING:
    from olivelike.model.records.origin import Origin
    from olivelike.sources.checkpoint import SourceFiles

STATED: Final = "workflow"
"""Where a licence stands that no file says."""
METADATA_KEYS: Final = ("modelspec.license", "general.license", "license")
_FRONT: Final = re.compile(r"\A\ufeff?---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_ENTRY: Final = re.compile(r"^(license(?:_name|_link)?):(.*)$", re.MULTILINE)
_TEXT_FILE: Final = re.compile(r"(licen[cs]e|copying)([-_.][\w.+-]*)?", re.IGNORECASE)
_NOTHING: Final = frozenset({"", "other", "unknown", "none", "n/a", "null", "~", "-"})
_MOST_BYTES: Final = 1 << 20
_LONGEST: Final = 120
_TITLE_LINES: Final = 5


def licensed(origin: Origin, stated: str | None = None, metadata: Mapping[str, str] = MappingProxyType({})) -> Origin:
    """Return an origin with its licence: that which a workflow states, else that of its files.

    Args:
        origin: It, with the licence of the repository or folder that it lies in, if that has one.
        stated: What the workflow states.
        metadata: Of the weight file's header.
    """
    said = origin.license or _of_metadata(metadata)
    if stated is None:
        return replace(origin, license=said)
    name = _name(stated)
    return replace(origin, license=License(name, STATED, otherwise=said.name if said and said.name != name else None))


def origin_of(files: SourceFiles) -> Origin:
    """Return the origin of a folder or repository, with the licence that its card or its licence's text says."""
    return replace(files.origin, license=_of_files(files))


def _of_files(files: SourceFiles) -> License | None:
    names = files.names("")
    texts = sorted(name for name in names if _TEXT_FILE.fullmatch(name))
    found = _of_card(_text(files, CARD_FILE)) if CARD_FILE in names else None
    if found is None:
        found = next(filter(None, (_of_text(name, _text(files, name)) for name in texts)), None)
    return found


def _text(files: SourceFiles, name: str) -> str:
    """Return a file's text; of one that is no text, or too long for one, nothing."""
    try:
        return read_bytes(files.path(name), _MOST_BYTES).decode()
    except (OSError, ValueError):
        return ""


def _of_card(text: str) -> License | None:
    front = _FRONT.match(text)
    entries = _ENTRY.findall(front[1]) if front else ()
    said = {key: value.partition(" #")[0].strip(" \t\r'\"") for key, value in entries}
    for key in ("license", "license_name"):
        if (name := _name(said.get(key, ""))).lower() not in _NOTHING:
            link = said.get("license_link", "")
            return License(name, CARD_FILE, one_line(link) if link.startswith("https://") else None)
    return None


def _of_text(file: str, text: str) -> License | None:
    """Return the licence whose text a file has, by the title that it begins with."""
    lines = [line.strip(" \t#*=-") for line in text[:_MOST_BYTES].splitlines()]
    title = [line for line in lines if line][:_TITLE_LINES]
    if len(title) > 1 and "apache license" in title[0].lower() and "version 2.0" in title[1].lower():
        return License("apache-2.0", file)
    named = next((line for line in title if re.search(r"licen[cs]e|rail", line, re.IGNORECASE)), None)
    return None if named is None or len(named) > _LONGEST else License(_name(named), file)


def _of_metadata(metadata: Mapping[str, str]) -> License | None:
    for key in METADATA_KEYS:
        if (name := _name(metadata.get(key, ""))).lower() not in _NOTHING:
            return License(name, key)
    return None


def _name(words: str) -> str:
    return license_id(one_line(words).strip()[:_LONGEST])
