"""A child that opens one engine and runs it when told to: JSON lines on standard input and output."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import psutil

from olivelike._json_child import serve
from olivelike._untrusted import Json, JsonView
from olivelike.errors import OlivelikeError
from olivelike.measure.contest.engine import Engine, EngineAbsent, Turn, decode_job
from olivelike.measure.contest.memory import peak_resident_bytes

_NO_MEMORY: Final = re.compile(r"out of memory|can('|no)t allocate memory|not enough memory|bad_alloc", re.IGNORECASE)


class _Worker:
    """Opens the engine of the first message, and runs it at each other one."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def handle(self, message: Json, answer: Callable[[JsonView], None]) -> None:
        try:
            found = self._answer(message)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the worker boundary)
            traceback.print_exc()
            found = _failure(error)
        answer({**found, "peak_bytes": peak_resident_bytes(), "resident_bytes": psutil.Process().memory_info().rss})

    def _answer(self, message: Json) -> Json:
        if self._engine is not None:
            timing = self._engine.run(Turn(**message))
            return {"timing": asdict(timing), "device_bytes": self._engine.device_bytes()}
        start = time.perf_counter()
        self._engine = decode_job(message).start()
        seconds = time.perf_counter() - start
        return {"load_seconds": seconds, "facts": self._engine.facts, "device_bytes": self._engine.device_bytes()}


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
