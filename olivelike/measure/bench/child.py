"""The parent's end of a child that measures."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, Literal

from olivelike.engine.execute.json_child import JsonChild, how_it_ended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Status = Literal["absent", "out of memory", "failed", "died", "timed out"]

_TAIL = 2000
"""Characters of the log to look for its last line in."""


class ChildFailure(Exception):  # noqa: N818  (marks a row, and is no error of the command)
    """A child gave no result."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status


class Child:
    """A worker process; the threads of its engine idle while it is not asked."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._answers: queue.SimpleQueue[dict[str, Any] | int] = queue.SimpleQueue()
        put = self._answers.put
        self._process = JsonChild("olivelike.measure.bench.bench_worker", log, put, put)
        self.pid = self._process.pid
        self.stop = self._process.stop

    def ask(self, message: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Send a message and wait for its answer.

        Args:
            message: JSON values.
            limit: seconds; a child that takes longer is killed.

        Raises:
            ChildFailure: if there is no answer, or it says that something failed.
        """
        self._process.send(message)
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            raise ChildFailure("timed out", f"gave no answer within {limit:g} s, and was stopped") from None
        if isinstance(answer, int):
            raise ChildFailure("died", self._how_it_died(answer))
        if "status" in answer:
            raise ChildFailure(answer["status"], answer["message"])
        return answer

    def _how_it_died(self, status: int) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return how_it_ended(status) if last is None else f"{how_it_ended(status)}; its last words: {last}"
