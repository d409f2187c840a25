"""Digests: SHA-256 over bytes, over files, and over JSON in one canonical form."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from olivelike._untrusted import open_file


def canonical_json(value: Any) -> bytes:
    """Encode `value` so that equal values give equal bytes.

    Keys are sorted, separators have no spaces, text is UTF-8; NaN and infinity are refused. Raises `ValueError` for NaN
    or infinity, and `TypeError` for what JSON can't hold.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data`, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `value`; a list's first item names its kind."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """Return the SHA-256 of the file at `path`, read in pieces that stay in the processor's cache."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
