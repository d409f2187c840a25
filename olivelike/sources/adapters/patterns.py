r"""Module patterns of PEFT's configs (`rank_pattern`, `alpha_pattern`), matched in bounded time.

PEFT runs each pattern of the file as `re.match(rf"(.*\.)?({pattern})$", path)`, which some patterns keep busy for ever,
and Python's `re` can't be stopped. So plain names are looked up here, and other patterns run in a child that can.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final, TypeVar

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Value = TypeVar("Value")

_PLAIN: Final = re.compile(r"\^?[\w-]+(?:\\?\.[\w-]+)*\$?")
"""A module's name; its dots are taken for dots, though to PEFT they stand for any character."""
_SECONDS: Final = 10.0
"""Until the child is ended; a thousand usual patterns take a tenth of one."""
_REMEDY: Final = "name the modules in full instead"

_CHILD: Final = r"""
import json, re, sys, warnings
warnings.simplefilter("ignore")
patterns, paths = json.load(sys.stdin)
made = [re.compile(rf"(.*\.)?({pattern})$") for pattern in patterns]
json.dump([next((i for i, one in enumerate(made) if one.match(path)), None) for path in paths], sys.stdout)
"""


def match_patterns(where: str, values: Mapping[str, Value], paths: Collection[str]) -> dict[str, Value]:
    """Return for each path the value of the first pattern that matches it; paths that none matches are left out.

    Args:
        where: The file, for messages.
        values: Pattern → value.
        paths: Modules' paths, such as `down_blocks.0.attentions.0.to_q`.

    Raises:
        SourceError: if a pattern is no regular expression, or matching takes too long.
    """
    plain: dict[str, int] = {}
    others: dict[str, int] = {}
    for number, pattern in enumerate(values):
        if _PLAIN.fullmatch(pattern):
            plain.setdefault(pattern.rstrip("$").replace("\\.", "."), number)
        else:
            others[pattern] = number
    matched = _match(where, others, list(paths)) if others else {}
    kept = list(values.values())
    found: dict[str, Value] = {}
    for path in paths:
        names = [f"^{path}", path, *(path[match.end() :] for match in re.finditer(r"\.", path))]
        numbers = [plain[name] for name in names if name in plain]
        numbers += [matched[path]] if path in matched else []
        if numbers:
            found[path] = kept[min(numbers)]
    return found


def _match(where: str, patterns: Mapping[str, int], paths: list[str]) -> dict[str, int]:
    """Return the number of the first regular expression that matches, by path."""
    given = json.dumps([list(patterns), paths])
    command = [sys.executable, "-I", "-S", "-c", _CHILD]
    first = next(iter(patterns))[:80]
    try:
        child = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        what = f"its patterns ({first!r} and others) take too long to match"
        raise SourceError(f"{where}: {what}; {_REMEDY}") from error
    if child.returncode:
        reason = "".join(child.stderr.strip().splitlines()[-1:])
        raise SourceError(
            f"{where}: patterns such as {first!r} are no regular expressions: {reason}; {_REMEDY}"
        )
    numbers = list(patterns.values())
    return {
        path: numbers[index]
        for path, index in zip(paths, json.loads(child.stdout), strict=True)
        if index is not None
    }
