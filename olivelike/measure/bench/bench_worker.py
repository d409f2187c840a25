"""A child that opens one engine and runs it when told to: JSON lines on standard input and output.

What libraries print goes to standard error. When the parent dies, the input ends and the child exits at once.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from olivelike.errors import OlivelikeError
from olivelike.measure.bench.bench_job import NetworkJob, Turn, decode_job
from olivelike.measure.bench.engines import EngineAbsent
from olivelike.measure.bench.process_memory import peak_resident_bytes

if TYPE_CHECKING:
    from olivelike.measure.bench.bench_job import Job
    from olivelike.measure.bench.timing import Timing

_NO_MEMORY: Final = re.compile(
    r"out of memory|can('|no)t allocate memory|not enough memory|bad_alloc", re.IGNORECASE
)


class Engine(Protocol):
    """What a child has opened."""

    @property
    def facts(self) -> dict[str, str]:
        """`version`, `provider` and `dtype`, for the table."""

    def run(self, turn: Turn) -> Timing:
        """Run once."""

    def device_bytes(self) -> int | None:
        """Return the device memory that its allocator has had at most; `None` if it does not know."""


def main() -> NoReturn:
    """Serve; returns never."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides what Ctrl-C means.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(messages,), daemon=True).start()
    engine: Engine | None = None
    while True:
        message = json.loads(messages.get())
        try:
            if engine is None:
                start = time.perf_counter()
                engine = open_engine(decode_job(message))
                answer: dict[str, Any] = {"load_seconds": time.perf_counter() - start, "facts": engine.facts}
            else:
                answer = {"timing": engine.run(Turn(**message)).to_json()}
            answer |= {"device_bytes": engine.device_bytes()}
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the worker boundary)
            traceback.print_exc()
            answer = _failure(error)
        answers.write(json.dumps({**answer, "peak_bytes": peak_resident_bytes()}) + "\n")
        answers.flush()


def open_engine(job: Job) -> Engine:
    """Open the engine of a job; what it is made of is imported here.

    Raises:
        EngineAbsent: if the engine can't be measured here.
        OlivelikeError: if it can't open what it should.
    """
    if isinstance(job, NetworkJob):
        from olivelike.measure.bench.network_engine import NetworkEngine

        return NetworkEngine(job)
    if job.checkpoint is not None:
        from olivelike.measure.bench.torch_engine import TorchEngine

        return TorchEngine(job)
    from olivelike.measure.bench.pipeline_engine import PipelineEngine

    return PipelineEngine(job)


def _read(messages: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        messages.put(line)
    os._exit(0)


def _failure(error: BaseException) -> dict[str, str]:
    message = str(error) if isinstance(error, OlivelikeError) else f"{type(error).__name__}: {error}"
    if isinstance(error, EngineAbsent):
        status = "absent"
    elif isinstance(error, MemoryError) or _NO_MEMORY.search(message):
        status = "out of memory"
    else:
        status = "failed"
    return {"status": status, "message": " ".join(message.split())}


if __name__ == "__main__":
    main()
