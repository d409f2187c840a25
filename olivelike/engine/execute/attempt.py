"""Doing one job, wherever: its result or why there is none, and its log."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.engine.execute.executor import Failed
from olivelike.engine.execute.memory_budget import resident
from olivelike.engine.kinds.kind import Workbench
from olivelike.errors import OlivelikeError, PassError, VerificationError
from olivelike.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.engine.kinds.kind import Done, Job
    from olivelike.pass_api import Progress


def attempt(job: Job, logger: logging.Logger, progress: Progress) -> Done | Failed:
    """Do a job; whatever it raises is an answer too, since this is the worker's boundary."""
    before, start = resident(os.getpid()), time.perf_counter()
    node, facts, word = job.place.node, {}, PassError.word
    try:
        done = job.run(Workbench(Store.open(Path(job.place.store)), logger, progress))
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
    else:
        return replace(done, seconds=time.perf_counter() - start, memory_before_bytes=before)
    return Failed(message, word, facts, before)


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[logging.Logger]:
    """Send a job's log to `path`."""
    logger = logging.getLogger("olivelike.job")
    logger.setLevel(logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()
