"""How large the store may grow."""

from __future__ import annotations

import os
import re

from olivelike.errors import UsageError

VARIABLE = "OLIVELIKE_CACHE_SIZE"
DEFAULT_BYTES = 20 * 1000**3
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?)B?|B)?", re.IGNORECASE)


def size_limit() -> int:
    """Return the cap in bytes: `$OLIVELIKE_CACHE_SIZE`, else 20 GB.

    Raises:
        UsageError: if the variable holds no size.
    """
    text = os.environ.get(VARIABLE, "").strip()
    return parse_size(text, VARIABLE) if text else DEFAULT_BYTES


def parse_size(text: str, where: str) -> int:
    """Return the bytes that a text such as `500 MB`, `20GB` or `1048576` means.

    Args:
        text: a number and a unit; `K`, `KB` are 1000 bytes, `KiB` 1024.
        where: the option or variable, for the message.

    Raises:
        UsageError: for any other text.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{where}: {text!r} is no size; write a number and a unit, such as 20GB or 500MB")
    number, prefix, binary = match.groups()
    power = " KMGT".index((prefix or " ").upper())
    return int(float(number) * (1024 if binary else 1000) ** power)
