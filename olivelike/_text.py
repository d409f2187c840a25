"""Common parts of messages: the nearest valid name, and numbers with their units."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import UsageError

if TYPE_CHECKING:
    import datetime as dt

_LISTED = 24
"""Most valid names that a message lists."""
_LONGEST = 500
"""Characters of a name that may have been meant for another."""
_NAMES = 1000
"""Most names of a folder that are looked at."""

_UNITS = ("B", "kB", "MB", "GB", "TB")
_MINUTE = 60
_WINDOWS = os.name == "nt"
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?)B?|B)?", re.IGNORECASE)


def did_you_mean(name: str, known: Iterable[str], kind: str = "known names") -> str:
    """Return the end of a message about an unknown name: `did you mean 'x'?`, or the valid names if none is near.

    `kind` is what the valid names are, in the plural, such as `passes`.
    """
    import difflib

    spelled = {valid.casefold(): valid for valid in reversed(list(known))}
    # Nothing is near what is longer, and comparing it takes its length in time.
    if len(name) <= _LONGEST and (near := difflib.get_close_matches(name.casefold(), spelled, n=1)):
        return f"did you mean {spelled[near[0]]!r}?"
    return f"{kind}: {listed(list(spelled.values())[::-1], _LISTED)}" if spelled else f"there are no {kind}"


def did_you_mean_path(path: Path, otherwise: str, among: Iterable[Path] | None = None) -> str:
    """Return `did you mean …?` if a path of nearly this name exists, else `otherwise`.

    It can have meant one of `among`, by default whatever is there.
    """
    nearest = _similar(path) if among is None else _nearest(path.name, among)
    if nearest is None:
        return otherwise
    inside = nearest.absolute().is_relative_to(Path.cwd())
    return f"did you mean {nearest.absolute().relative_to(Path.cwd()) if inside else nearest}?"


def _similar(path: Path) -> Path | None:
    """Return the file or folder whose name is nearest to that of a path that does not exist; `None` if none is."""
    folder = path.parent
    if folder == path:
        return None
    if not folder.is_dir():
        other = _similar(folder)
        if other is None:
            return None
        if (other / path.name).exists():
            return other / path.name
        folder = other
    try:
        return _nearest(path.name, islice(folder.iterdir(), _NAMES))
    except OSError:
        return None


def _nearest(name: str, paths: Iterable[Path]) -> Path | None:
    """Return the first of those whose last name is most like `name`."""
    import difflib

    known = {path.name: path for path in reversed(list(paths)) if path.name.isprintable()}
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return known[nearest[0]] if nearest else None


def size(count: float) -> str:
    """Return a number of bytes with a unit, such as `1.2 GB`."""
    exponent = 0
    # From here on one decimal would show 1000.0.
    while count >= 999.95 and exponent < len(_UNITS) - 1:
        count /= 1000
        exponent += 1
    return f"{count:.0f} B" if exponent == 0 else f"{count:.1f} {_UNITS[exponent]}"


def byte_count(text: str, where: str) -> int:
    """Return the bytes that a text such as `500 MB`, `20GB` or `1048576` means.

    It is a number and a unit; `K`, `KB` are 1000 bytes, `KiB` 1024.

    Raises:
        UsageError: for any other text. pydantic's `ByteSize` reads `1.5.GB` as one byte and `20,GB` as twenty.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{where}: {text!r} is no size; write a number and a unit, such as 20GB or 500MB")
    number, prefix, binary = match.groups()
    power = " KMGT".index((prefix or " ").upper())
    return int(float(number) * (1024 if binary else 1000) ** power)


def change_of_size(before: float, after: float) -> str:
    """Return two numbers of bytes, with the unit once where it is the same: `26.9 → 18.9 MB`."""
    (first, unit), (second, other) = size(before).split(), size(after).split()
    return f"{first} → {second} {other}" if unit == other else f"{first} {unit} → {second} {other}"


def duration(seconds: float) -> str:
    """Return a duration such as `0.1 s` or `2 min 05 s`."""
    if seconds < _MINUTE * 2:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    return f"{minutes} min {rest:02} s"


def roughly(seconds: float) -> str:
    """Return an estimated duration, no more exact than it can be: `about 40 s`, `about 1 h 20 min`."""
    if seconds < 10:
        return "less than 10 s"
    if seconds < _MINUTE - 2.5:
        return f"about {5 * round(seconds / 5)} s"
    minutes = max(1, round(seconds / _MINUTE))
    if minutes >= 10:
        step = 5 if minutes < 2 * _MINUTE else 10
        minutes = step * round(minutes / step)
    hours, rest = divmod(minutes, _MINUTE)
    return "about " + " ".join([f"{hours} h"] * bool(hours) + [f"{rest} min"] * bool(rest))


def moment(when: dt.datetime) -> str:
    """Return a time to the minute, as clocks here show it."""
    return when.astimezone().strftime("%Y-%m-%d %H:%M")


def listed(names: Sequence[str], most: int) -> str:
    """Return `one, two and 3 more`: as many names as there is room for."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def quoted(word: str | Path) -> str:
    """Return a path or name as a shell of this system takes it for one word, for commands that people copy."""
    import shlex

    text = str(word)
    if text.startswith("-"):
        text = f"./{text}"  # Otherwise it would be taken for an option.
    if not _WINDOWS:
        return shlex.quote(text)
    return text if re.fullmatch(r"[\w@+=:,./\\~-]+", text) else f'"{text}"'


def count(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
