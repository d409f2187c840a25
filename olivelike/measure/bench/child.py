"""The parent's end of a child that measures."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
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
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "olivelike.measure.bench.bench_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, message: dict[str, Any], limit: float) -> dict[str, Any]:
        """Send a message and wait for its answer.

        Args:
            message: JSON values.
            limit: seconds; a child that takes longer is killed.

        Raises:
            ChildFailure: if there is no answer, or it says that something failed.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It has died; the reader thread says so.
            self._process.stdin.write((json.dumps(message) + "\n").encode())
            self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            raise ChildFailure("timed out", f"gave no answer within {limit:g} s, and was stopped") from None
        if answer is None:
            raise ChildFailure("died", self._how_it_died())
        if "status" in answer:
            raise ChildFailure(answer["status"], answer["message"])
        return answer

    def stop(self) -> None:
        """End the process, with what it has started, and wait for it."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # Closed by `stop`, or cut off in the middle of a line.
            for line in self._process.stdout:
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def _how_it_died(self) -> str:
        status = self._process.wait()
        if status < 0:
            number = -status
            name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
            lack = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            how = f"was killed by {name}{lack}"
        else:
            how = f"ended with status {status}"
        lines = self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return how if last is None else f"{how}; its last words: {last}"
