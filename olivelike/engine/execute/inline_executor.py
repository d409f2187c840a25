"""Jobs in this very process, one after the other: for tests, and wherever processes can't be started."""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from pathlib import Path

from olivelike.engine.execute.executor import LIGHT, Advanced, Answer, Demand
from olivelike.engine.execute.memory_budget import resident
from olivelike.engine.execute.worker import attempt, logging_to
from olivelike.engine.kinds.kind import Job


class InlineExecutor:
    """Does each job when it is asked for the next answer."""

    memory_limit = None

    def __init__(self, size: int, log: Path) -> None:
        """Begin nothing; how many jobs are taken at once does not matter."""
        del log
        self.size = size
        self._jobs: deque[Job] = deque()
        self._answers: deque[Answer] = deque()
        self._peak = 0

    def submit(self, job: Job, demand: Demand = LIGHT) -> None:  # noqa: ARG002
        """Take a job."""
        self._jobs.append(job)

    def next_answer(self, timeout: float) -> Answer | None:
        """Do the next job, and return what it says, one answer after the other; without a job, wait."""
        if not self._answers and self._jobs:
            self._do(self._jobs.popleft())
        if self._answers:
            return self._answers.popleft()
        time.sleep(timeout)  # Other threads have work: files to hash, results to fetch.
        return None

    def cancel(self, node: str) -> None:
        """Forget a job that has not begun, and what it said."""
        self._jobs = deque(job for job in self._jobs if job.place.node != node)
        self._answers = deque(answer for answer in self._answers if answer.node != node)

    def close(self) -> int:
        """Forget all jobs."""
        self._jobs.clear()
        return self._peak

    def _do(self, job: Job) -> None:
        node = job.place.node

        def progress(done: int, total: int, note: str = "") -> None:
            self._answers.append(Answer(node, Advanced(done, total, note)))

        with logging_to(Path(job.place.log)) as logger, warnings.catch_warnings():
            warnings.simplefilter("default")
            content = attempt(Job.from_json(job.to_json()), logger, progress)
        peak = resident(os.getpid())
        self._peak = max(self._peak, peak)
        self._answers.append(Answer(node, content, peak))
