"""Worker processes: started when first needed, reused while they live, replaced when they die."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from olivelike.engine.execute.job import Job


@dataclass(frozen=True)
class Answer:
    """One message of a worker; `kind` is `progress`, `done`, `failed` or, when it has died, `died`."""

    worker: Worker
    kind: str
    data: dict[str, Any]


class Worker:
    """One child process."""

    def __init__(self, answers: queue.SimpleQueue[Answer], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "olivelike.engine.execute.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._answers = answers
        self.job: Job | None = None
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs, or its end is still to be told to whoever waits for its job."""
        return self._process.poll() is None or self.job is not None

    def send(self, job: Job) -> None:
        """Give the worker a job; its answers arrive in the pool's queue."""
        self.job = job
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(job.to_json()) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It has died; the reader thread says so.

    def stop(self) -> None:
        """End the process and wait for it."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # With whatever a pass has started.
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                message = json.loads(line)
                self._answers.put(Answer(self, message.pop("answer"), message))
        except ValueError:
            pass  # Closed by `stop`, or cut off in the middle of a line.
        status = self._process.wait()
        self._answers.put(Answer(self, "died", {"status": status}))


class Pool:
    """At most `size` workers; what they say outside of a job goes to `log`."""

    def __init__(self, size: int, log: Path) -> None:
        self._size = size
        self._log = log
        self._workers: list[Worker] = []
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    @property
    def workers(self) -> list[Worker]:
        """The live workers."""
        return list(self._workers)

    def idle(self, fits: Callable[[Worker], bool] = lambda _: True) -> Worker | None:
        """Return a worker without a job, started if need be; `None` if all are busy.

        A worker that does not fit, such as one that holds too much memory, is replaced.
        """
        for worker in self.workers:
            if not worker.alive:
                self.drop(worker)
        free = [worker for worker in self._workers if worker.job is None]
        fitting = [worker for worker in free if fits(worker)]
        if fitting:
            return fitting[-1]
        if len(self._workers) >= self._size:
            if not free:
                return None
            self.drop(free[0])
        worker = Worker(self.answers, self._log)
        self._workers.append(worker)
        return worker

    def drop(self, worker: Worker) -> None:
        """End a worker and forget it."""
        worker.stop()
        if worker in self._workers:
            self._workers.remove(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            self.drop(worker)
