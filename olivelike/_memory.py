"""Measuring resident memory while workers run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

_INTERVAL = 0.1


class MemoryWatch:
    """Samples resident memory of this process and its workers, in a thread."""

    def __init__(self, workers: Callable[[], Iterable[int]]) -> None:
        """Begin to sample; `workers` returns their process ids."""
        self._workers = workers
        self._peaks: dict[int, int] = {}
        self._peak = 0
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop sampling; return the highest sum over all processes, in bytes."""
        self._stopped.set()
        self._thread.join()
        return self._peak

    def begin(self, pid: int) -> None:
        """Start the peak of one worker anew."""
        with self._guard:
            self._peaks[pid] = resident(pid)

    def peak_of(self, pid: int) -> int:
        """Return a worker's peak since `begin`, in bytes."""
        return max(self._peaks.get(pid, 0), resident(pid))

    def _watch(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            total = resident(os.getpid())
            for pid in self._workers():
                with self._guard:  # Else the peak of the task before could be put back behind `begin`.
                    size = resident(pid)
                    self._peaks[pid] = max(self._peaks.get(pid, 0), size)
                total += size
            self._peak = max(self._peak, total)


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes; 0 if it is gone."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def default_limit() -> int:
    """Return the default memory budget: four fifths of what is free now, in bytes."""
    import psutil

    return int(psutil.virtual_memory().available) * 4 // 5
