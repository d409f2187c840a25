"""What the store's commands report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.store.action import Action


@dataclass(frozen=True)
class Entry:
    """One action with what it occupies, for listings."""

    action: Action
    bytes: int
    """Sum of its parts; parts that other actions share count here too."""
    last_used: float
    """Seconds since the epoch."""
    protected: bool
    """Whether a live run or a pin keeps it from garbage collection."""


@dataclass(frozen=True)
class StoreSize:
    """Bytes and files of each folder at the store's top."""

    bytes: dict[str, int]
    files: dict[str, int]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.bytes.values())


@dataclass(frozen=True)
class Problem:
    """One entry that is not as it should be."""

    path: Path
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` read and found."""

    objects: int
    bytes: int
    actions: int
    problems: list[Problem] = field(default_factory=list)
    repaired: bool = False
    """Whether each problem was moved to quarantine or removed; what needs it is then remade."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


@dataclass(frozen=True)
class GcReport:
    """What garbage collection removed and left."""

    bytes_before: int
    bytes_after: int
    max_bytes: int
    actions_removed: int
    objects_removed: int

    @property
    def bytes_freed(self) -> int:
        """How much smaller the store became."""
        return self.bytes_before - self.bytes_after
