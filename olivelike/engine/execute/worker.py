"""A worker: a child process that runs one job after another until its standard input ends.

It answers on the descriptor that was its standard output; what passes print goes to the job's log. When the
parent dies, the input ends and the worker exits at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.engine.execute.job import Job
from olivelike.engine.execute.memory_budget import resident
from olivelike.engine.execute.tasks import run_job
from olivelike.errors import OlivelikeError, PassError, VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.engine.execute.job import Done

_PROGRESS_INTERVAL = 0.1


def main() -> None:
    """Serve jobs; returns never."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides what Ctrl-C means.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    while True:
        _serve(Job(**json.loads(jobs.get())), answers)


def _read_jobs(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def _serve(job: Job, answers: Any) -> None:
    def answer(kind: str, **data: Any) -> None:
        answers.write(json.dumps({"answer": kind, **data}) + "\n")
        answers.flush()

    last = [0.0]

    def progress(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= _PROGRESS_INTERVAL or done >= total:
            last[0] = now
            answer("progress", done=done, total=total)

    before = resident(os.getpid())
    with _logging_to(Path(job.log)) as logger:
        try:
            done = replace(_timed(job, logger, progress), memory_before_bytes=before)
        except OlivelikeError as error:
            logger.exception("%s failed", job.node)
            facts = dict(error.facts) if isinstance(error, VerificationError) else {}
            answer("failed", message=str(error), error=error.word, facts=facts, memory_before_bytes=before)
        except MemoryError:
            logger.exception("%s ran out of memory", job.node)
            answer(
                "failed",
                message="ran out of memory; allow more with --memory-limit, or use --workers 1",
                error=PassError.word,
                memory_before_bytes=before,
            )
        except (Exception, SystemExit) as error:  # The worker boundary.
            logger.exception("%s raised", job.node)
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            message = f"{type(error).__name__}: {error} (at {where})"
            answer("failed", message=message, error=PassError.word, memory_before_bytes=before)
        else:
            answer("done", **asdict(done))


def _timed(job: Job, logger: logging.Logger, progress: Any) -> Done:
    start = time.perf_counter()
    done = run_job(job, logger, progress)
    return replace(done, seconds=time.perf_counter() - start)


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[logging.Logger]:
    """Send the log and everything printed to `path` while a job runs."""
    with path.open("a", encoding="utf-8") as file:
        saved = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        logger = logging.getLogger("olivelike.job")
        logger.setLevel(logging.INFO)
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        try:
            yield logger
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            logger.removeHandler(handler)
            for number, descriptor in enumerate(saved, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)


if __name__ == "__main__":
    main()
