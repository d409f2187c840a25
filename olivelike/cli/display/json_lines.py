"""Events as JSON lines; the last one is always `run_finished`."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from olivelike.cli.stdout import write_json
from olivelike.errors import Interrupted

if TYPE_CHECKING:
    from types import TracebackType

    from olivelike.engine.execute.events import Event


class JsonLines:
    """A listener that writes each event as a line of JSON.

    `run_finished` is held back until the run has returned or raised: it comes last and carries the error. If
    the engine sent none, because the run ended before it began, it is made from what was seen.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._counts: Counter[str] = Counter()
        self._started: dict[str, Any] = {}
        self._finished: dict[str, Any] | None = None
        self._peak = 0

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if event.name == "run_finished":
            self._finished = event.data
            return
        if event.name == "run_started":
            self._started = event.data
        self._counts[event.name] += 1
        self._peak = max(self._peak, event.data.get("peak_memory_bytes", 0))
        write_json(event.to_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished = self._finished or self._ended_early(error)
        message = None if error is None else str(error) or type(error).__name__
        write_json({"event": "run_finished", **finished, "error": message})

    def _ended_early(self, error: BaseException | None) -> dict[str, Any]:
        interrupted = isinstance(error, (KeyboardInterrupt, Interrupted))
        return {
            "run_id": self._started.get("run_id"),
            "status": "interrupted" if interrupted else "failed",
            "nodes": self._started.get("nodes", 0),
            "hits": self._counts["node_hit"],
            "executed": self._counts["node_finished"],
            "seconds": round(time.perf_counter() - self._start, 3),
            "peak_memory_bytes": self._peak,
            "output": None,
            "report": None,
        }
