"""The record of one executed node: what went in, what came out, what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from olivelike.store.layout import is_digest

KIND = "action/1"
"""Kind of the sealed record; a change of meaning takes the next number."""


@dataclass(frozen=True)
class Action:
    """One result: the objects that a key stands for."""

    key: str
    """SHA-256 of all that decides the result."""
    inputs: dict[str, Any]
    """The parts of the key, as JSON."""
    outputs: dict[str, str]
    """Digest of each facet that was produced, by facet name."""
    parts: dict[str, int]
    """Size in bytes of every object that the result needs, by digest: outputs and tensors."""
    facts: dict[str, Any]
    """What the pass reported: counts, decisions, warnings."""
    seconds: float
    peak_memory_bytes: int
    created: str
    """Time in UTC, ISO 8601."""

    def to_content(self) -> dict[str, Any]:
        """Return the record's content as JSON values."""
        return asdict(self)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Action | None:
        """Read what `to_content` gave; `None` if it is not of that shape."""
        if content.keys() != {field.name for field in fields(cls)}:
            return None
        outputs, parts = content["outputs"], content["parts"]
        if not (isinstance(outputs, dict) and isinstance(parts, dict) and is_digest(content["key"])):
            return None
        sizes_are_counts = all(type(size) is int and size >= 0 for size in parts.values())
        if not sizes_are_counts or not all(map(is_digest, [*parts, *outputs.values()])):
            return None
        return cls(**content) if parts.keys() >= set(outputs.values()) else None
