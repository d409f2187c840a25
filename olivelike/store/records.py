"""Sealed JSON records: readable text that carries the hash of its own content."""

from __future__ import annotations

import json
from typing import Any

from olivelike.digest import digest_json


def seal(kind: str, content: dict[str, Any]) -> bytes:
    """Serialise a record with its kind and the SHA-256 of its canonical JSON.

    Args:
        kind: what it is and in which version, such as `action/1`.
        content: JSON values; the names `kind` and `seal` are taken.

    Raises:
        ValueError: for a taken name, or a number that JSON lacks.
    """
    if taken := content.keys() & {"kind", "seal"}:
        raise ValueError(f"a record can't have the names {sorted(taken)}")
    record = {"kind": kind, **content}
    return json.dumps({"seal": digest_json(record), **record}, indent=1, allow_nan=False).encode() + b"\n"


def unseal(kind: str, data: bytes) -> dict[str, Any] | None:
    """Return the content that `seal` was given, or `None` for another kind or damaged bytes."""
    try:
        record = json.loads(data)
        if not isinstance(record, dict) or record.pop("seal", None) != digest_json(record):
            return None
    except (ValueError, RecursionError):
        return None
    return record if record.pop("kind", None) == kind else None
