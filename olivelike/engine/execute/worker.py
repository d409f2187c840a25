"""Doing tasks: one, wherever that is; and a worker, a child process that does them one by one until its input ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from olivelike._installed import lacking
from olivelike._json_child import serve
from olivelike._memory import resident
from olivelike._untrusted import Json, JsonView
from olivelike.engine.execute.executor import Failed
from olivelike.engine.kinds import KINDS  # noqa: F401  (their tasks are found by name)
from olivelike.engine.kinds.kind import Done, NotedProgress, Task, Workbench
from olivelike.errors import OlivelikeError, PassError, VerificationError
from olivelike.store import Store

_PROGRESS_INTERVAL = 0.1


def do(message: Json, answer: Callable[[JsonView], None]) -> None:
    """Do one task, and answer how far it is and how it ended."""
    task, last = Task.from_json(message), 0.0

    def progress(done: int, total: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_INTERVAL or done >= total:
            last = now
            answer({"answer": "advanced", "done": done, "total": total, "note": note})

    log = Path(task.place.log)
    with _printing_to(log), logging_to(log) as logger:
        content = attempt(task, logger, progress)
        answer({"answer": "failed" if isinstance(content, Failed) else "done", **asdict(content)})


def attempt(task: Task, logger: logging.Logger, progress: NotedProgress) -> Done | Failed:
    """Do a task; whatever it raises is an answer too, since this is the worker's boundary."""
    before, start = resident(os.getpid()), time.perf_counter()
    node, facts, word = task.place.node, {}, PassError.word
    try:
        done = task.run(Workbench(Store.open(Path(task.place.store)), logger, progress))
    except OlivelikeError as error:
        logger.exception("%s failed", node)
        message, word = str(error), error.word
        facts = dict(error.facts) if isinstance(error, VerificationError) else {}
    except MemoryError:
        logger.exception("%s ran out of memory", node)
        message = "ran out of memory; allow more with --memory-limit, or use --workers 1"
    except (Exception, SystemExit) as error:
        logger.exception("%s raised", node)
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} (at {Path(place.filename).name}:{place.lineno})"
        if absent := lacking(error):
            message, word = str(absent), absent.word
    else:
        return replace(done, seconds=time.perf_counter() - start, memory_before_bytes=before)
    return Failed(message, word, facts, before)


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[logging.Logger]:
    """Send a task's log to `path`."""
    logger = logging.getLogger("olivelike.task")
    logger.setLevel(logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextlib.contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """Send everything that is printed to `path` while a task runs."""
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
