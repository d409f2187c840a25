"""How much memory a process takes: at most, as it says itself, and as it is seen from outside while it runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil

    from olivelike.measure.bench.nvidia_memory import NvidiaDriver

_STATUS: Final = Path("/proc/self/status")
_KIB: Final = 1024
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


def _look_at_tree(process: psutil.Process, resident: int, driver: NvidiaDriver | None, peaks: Peaks) -> None:
    import psutil

    total, pids = resident, {process.pid}
    for member in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
            pids.add(member.pid)
    peaks.tree = max(peaks.tree, total)
    if driver is not None and (used := driver.process_bytes(pids)) is not None:
        peaks.device = max(peaks.device or 0, used)


def peak_resident_bytes() -> int:
    """Return the highest resident memory of this process so far, as the operating system counted it.

    On Linux this is `VmHWM`, and not `ru_maxrss`: the latter begins with what the parent held as it started the
    process (man 2 getrusage, exec in kernel/exec.c). For a small parent such as `/usr/bin/time` they are the same.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIB
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    # macOS counts in bytes, others in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else _KIB)
