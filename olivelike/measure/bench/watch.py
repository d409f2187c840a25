"""A child's memory, looked at from outside while it runs."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.measure.bench.nvidia_memory import NvidiaDriver

_INTERVAL: Final = 0.02
_TREE_EVERY: Final = 10
"""Looking for children of the child takes a hundred times as long as looking at itself."""


@dataclass
class Peaks:
    """The most that was seen, in bytes; 0 before anything was."""

    resident: int = 0
    """Of the process."""
    tree: int = 0
    """Of the process and all that it started, at the same time; pages that they share count for each."""
    device: int | None = None
    """On GPUs, of these processes alone; `None` if the driver does not say."""


@contextlib.contextmanager
def watching(pid: int, driver: NvidiaDriver | None) -> Iterator[Peaks]:
    """Look at a process every 20 ms during the block."""
    peaks, done = Peaks(), threading.Event()
    thread = threading.Thread(target=_watch, args=(pid, driver, peaks, done), daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def _watch(pid: int, driver: NvidiaDriver | None, peaks: Peaks, done: threading.Event) -> None:
    import psutil

    look = 0
    with contextlib.suppress(psutil.Error):  # It has died; whoever waits for its answer says so.
        process = psutil.Process(pid)
        while True:
            resident = process.memory_info().rss
            peaks.resident = max(peaks.resident, resident)
            if look % _TREE_EVERY == 0:
                _look_at_tree(process, resident, driver, peaks)
            look += 1
            if done.wait(_INTERVAL):
                return


def _look_at_tree(process: object, resident: int, driver: NvidiaDriver | None, peaks: Peaks) -> None:
    import psutil

    assert isinstance(process, psutil.Process)
    total, pids = resident, {process.pid}
    for member in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
            pids.add(member.pid)
    peaks.tree = max(peaks.tree, total)
    if driver is not None and (used := driver.process_bytes(pids)) is not None:
        peaks.device = max(peaks.device or 0, used)
