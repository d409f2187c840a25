"""A child that opens one engine and runs it when told to: JSON lines on standard input and output."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

import psutil

from olivelike.engine.execute.json_child import serve
from olivelike.errors import OlivelikeError
from olivelike.measure.bench.bench_job import Job, NetworkJob, Timing, Turn, decode_job
from olivelike.measure.bench.engines import EngineAbsent
from olivelike.measure.bench.memory import peak_resident_bytes
from olivelike.measure.one_file_inputs import is_one_file

_NO_MEMORY: Final = re.compile(r"out of memory|can('|no)t allocate memory|not enough memory|bad_alloc", re.IGNORECASE)


class Engine(Protocol):
    """What a child has opened."""

    @property
    def facts(self) -> dict[str, str]:
        """`version`, `provider` and `dtype`, for the table."""

    def run(self, turn: Turn) -> Timing:
        """Run once."""

    def device_bytes(self) -> int | None:
        """Return the device memory that its allocator has had at most; `None` if it does not know."""


class _Worker:
    """Opens the engine of the first message, and runs it at each other one."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def handle(self, message: dict[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
        try:
            found = self._answer(message)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the worker boundary)
            traceback.print_exc()
            found = _failure(error)
        answer({**found, "peak_bytes": peak_resident_bytes(), "resident_bytes": psutil.Process().memory_info().rss})

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._engine is not None:
            timing = self._engine.run(Turn(**message))
            return {"timing": asdict(timing), "device_bytes": self._engine.device_bytes()}
        start = time.perf_counter()
        self._engine = open_engine(decode_job(message))
        seconds = time.perf_counter() - start
        return {"load_seconds": seconds, "facts": self._engine.facts, "device_bytes": self._engine.device_bytes()}


def open_engine(job: Job) -> Engine:
    """Open the engine of a job; what it is made of is imported here.

    Raises `EngineAbsent` if the engine can't be measured here, and `OlivelikeError` if it can't open what it should.
    """
    if isinstance(job, NetworkJob):
        from olivelike.measure.bench.runtime_engine import NetworkEngine, OneFileEngine

        if is_one_file(job.model):
            return OneFileEngine(job)
        return NetworkEngine(job)
    if job.checkpoint is not None:
        from olivelike.measure.bench.torch_engine import TorchEngine

        return TorchEngine(job)
    from olivelike.measure.bench.runtime_engine import PipelineEngine

    return PipelineEngine(job)


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
    serve(_Worker().handle)
