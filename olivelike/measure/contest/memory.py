"""How much memory a process takes: at most, as it says itself, and as it is seen from outside while it runs.

NVIDIA GPUs by the driver's own library (`pip install nvidia-ml-py`), which knows clocks and versions too.

Also whether the machine was quiet: what other processes took meanwhile, and how far repeats are apart.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from olivelike.runtime.sessions.devices import NVIDIA, find_device

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session_settings import SessionSettings


@dataclass(frozen=True)
class GpuState:
    """A GPU, and how fast it runs at the moment; `None` for what the driver does not tell of it."""

    name: str | None
    driver: str | None
    clock_mhz: int | None
    """Clock of the multiprocessors."""
    memory_clock_mhz: int | None


class NvidiaDriver:
    """The driver's library, opened; `open_driver` makes it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]

    def process_bytes(self, pids: Collection[int]) -> int | None:
        """Return the GPU memory of these processes; `None` if the driver lists none of them.

        It does not where processes are numbered anew in a container.
        """
        nvml = self._nvml
        try:
            running = [nvml.nvmlDeviceGetComputeRunningProcesses(handle) for handle in self._handles]
        except nvml.NVMLError:  # Not every GPU counts by process.
            return None
        found = [
            process.usedGpuMemory
            for processes in running
            for process in processes
            if process.pid in pids and process.usedGpuMemory is not None
        ]
        return sum(found) if found else None

    def state(self, device: int) -> GpuState | None:
        """Return name, driver and present clocks of a GPU; `None` if the driver lists no such device."""
        if device >= len(self._handles):
            return None
        nvml, handle = self._nvml, self._handles[device]
        return GpuState(
            self._ask(nvml.nvmlDeviceGetName, handle),
            self._ask(nvml.nvmlSystemGetDriverVersion),
            self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        )

    def _ask(self, question: Callable[..., Any], *operands: Any) -> Any:
        try:
            return question(*operands)
        except self._nvml.NVMLError:  # Not every GPU answers each question.
            return None


def gpu_of(sessions: SessionSettings) -> int | None:
    """Return the number of the NVIDIA GPU that sessions run on; `None` if they run on something else.

    Raises `SessionError` if the GPU that they name is not there.
    """
    if sessions.provider.name not in NVIDIA:
        return None
    asked = find_device(sessions.device, sessions.provider)
    option = str(sessions.providers[0].options.get("device_id", "0"))
    return asked if asked is not None else int(option) if option.isdecimal() else None


def open_driver() -> NvidiaDriver | None:
    """Open the driver's library; `None` without the package, the driver, or a GPU."""
    if find_spec("pynvml") is None:
        return None
    nvml: Any = importlib.import_module("pynvml")  # Not one of the dependencies.
    try:
        nvml.nvmlInit()
        return NvidiaDriver(nvml) if nvml.nvmlDeviceGetCount() else None
    except nvml.NVMLError:
        return None


_STATUS: Final = Path("/proc/self/status")
_KIB: Final = 1024
_INTERVAL: Final = 0.02
_TREE_EVERY: Final = 10
"""Looking for children of the child takes a hundred times as long as looking at itself."""


@dataclass
class Peaks:
    """The most that was seen, in bytes; 0 before anything was."""

    resident: int = 0
    """Bytes of the process."""
    tree: int = 0
    """Bytes of the process and all that it started, at the same time; pages that they share count for each."""
    device: int | None = None
    """Bytes on GPUs, of these processes alone; `None` if the driver does not say."""


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
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    # macOS counts in bytes, others in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else _KIB)


_OUTLIER: Final = 14.826
"""Median absolute deviations from the median: ten standard deviations of a normal distribution, as hyperfine has it
(src/outlier_detection.rs, after Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993)."""
_FAR: Final = 0.1
"""Share of the median that an outlier is off by at least: few repeats may agree to a hair by chance."""
_SPREAD: Final = 20.0
"""Percent of the median between the fastest and the slowest run, above which a row has a note."""
_BUSY: Final = 10.0
"""Percent of all processors' time that other processes took, above which it has one too."""


@dataclass(frozen=True)
class Surroundings:
    """Work of others beside measured runs."""

    seconds: float = 0.0
    """Time of the runs, by the clock."""
    other_seconds: float = 0.0
    """CPU seconds of processes that are not ours in that time."""
    loads: tuple[float, ...] = ()
    """The system's load average at the end of each, ours included."""

    @property
    def other_percent(self) -> float | None:
        """Percent of all processors' time that other processes took; `None` if nothing was measured."""
        capacity = self.seconds * (psutil.cpu_count() or 1)
        return min(max(100 * self.other_seconds / capacity, 0.0), 100.0) if capacity else None

    @property
    def load(self) -> float | None:
        """The mean of the load averages."""
        return statistics.fmean(self.loads) if self.loads else None

    def __add__(self, other: Surroundings) -> Surroundings:
        return Surroundings(
            self.seconds + other.seconds, self.other_seconds + other.other_seconds, self.loads + other.loads
        )


@contextlib.contextmanager
def surveying() -> Iterator[list[Surroundings]]:
    """Look at the machine before and after the block; the list has what was found when it ends."""
    found: list[Surroundings] = []
    start, before = time.perf_counter(), _other_seconds()
    yield found
    load = psutil.getloadavg()[0]
    found.append(Surroundings(time.perf_counter() - start, _other_seconds() - before, (load,)))


def _other_seconds() -> float:
    """Return the CPU seconds of the machine so far, without those of this process and all that it started."""
    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "guest", "guest_nice")  # Guests are in `user` and `nice` already.
    busy = float(sum(seconds for name, seconds in times.items() if name not in idle))
    ours = psutil.Process()
    for process in (ours, *ours.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            busy -= used.user + used.system + used.children_user + used.children_system
    return busy


def spread_percent(seconds: Sequence[float]) -> float | None:
    """Return the percent of the median between the fastest and the slowest run; `None` of fewer than two."""
    if len(seconds) < 2 or not (middle := statistics.median(seconds)):
        return None
    return 100 * (max(seconds) - min(seconds)) / middle


def outliers(seconds: Sequence[float]) -> list[float]:
    """Return the runs that are far from the others."""
    if len(seconds) < 3:
        return []
    middle = statistics.median(seconds)
    deviation = statistics.median(abs(value - middle) for value in seconds)
    return [
        value for value in seconds if abs(value - middle) > _OUTLIER * deviation and abs(value - middle) > _FAR * middle
    ]


def noise(seconds: Sequence[float], surroundings: Surroundings) -> str | None:
    """Return why the figures of a row are not to be trusted; `None` if nothing speaks against them."""
    found = []
    if far := outliers(seconds):
        listed = ", ".join(f"{value:.3g} s" for value in far)
        verb = "is an outlier" if len(far) == 1 else "are outliers"
        middle = statistics.median(seconds)
        found.append(f"{len(far)} of its {len(seconds)} runs {verb} ({listed}; the median is {middle:.3g} s)")
    elif (spread_percent(seconds) or 0) > _SPREAD:
        found.append(f"its runs took {min(seconds):.3g} to {max(seconds):.3g} s")
    share = surroundings.other_percent
    if share is not None and share > _BUSY:
        found.append(
            f"other processes took {share:.0f} % of the processors meanwhile (load average {surroundings.load:.1f})"
        )
    return f"{'; '.join(found)}: measure again on a quiet machine" if found else None
