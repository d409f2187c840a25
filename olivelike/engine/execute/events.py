"""The one event stream: progress display, JSON lines, run record and report all feed on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from olivelike._untrusted import Json

EventName = Literal[
    "run_started",
    "run_progress",
    "node_waiting",
    "node_hit",
    "node_shelved",
    "node_started",
    "node_progress",
    "node_running",
    "node_finished",
    "node_failed",
    "node_skipped",
    "output_unchanged",
    "output_published",
    "shared_store",
    "warning",
    "run_finished",
]


@dataclass(frozen=True)
class Event:
    """One thing that happened; `data` holds JSON values."""

    name: EventName
    data: Json = field(default_factory=dict)

    def to_json(self) -> Json:
        """Return the event as one JSON object."""
        return {"event": self.name, **self.data}


Listener = Callable[[Event], None]
