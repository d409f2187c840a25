"""A worker: a child process that runs one job after another until its standard input ends."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.engine.execute.attempt import attempt, logging_to
from olivelike.engine.execute.executor import Failed
from olivelike.engine.execute.json_child import serve
from olivelike.engine.kinds import KINDS  # noqa: F401  (their jobs are found by name)
from olivelike.engine.kinds.kind import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PROGRESS_INTERVAL = 0.1


def do(message: dict[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
    """Do one job, and answer how far it is and how it ended."""
    job, last = Job.from_json(message), 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_INTERVAL or done >= total:
            last = now
            answer({"answer": "advanced", "done": done, "total": total})

    log = Path(job.place.log)
    with _printing_to(log), logging_to(log) as logger:
        content = attempt(job, logger, progress)
        answer({"answer": "failed" if isinstance(content, Failed) else "done", **asdict(content)})


@contextlib.contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """Send everything that is printed to `path` while a job runs."""
    with path.open("a", encoding="utf-8") as file:
        saved = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(saved, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)


if __name__ == "__main__":
    serve(do)
