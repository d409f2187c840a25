"""NVIDIA GPUs, by the driver's own library (`pip install nvidia-ml-py`): memory per process, clocks, driver."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True)
class GpuState:
    """A GPU, and how fast it runs at the moment."""

    name: str
    driver: str
    clock_mhz: int
    """Of the multiprocessors."""
    memory_clock_mhz: int


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

    def state(self, device: int) -> GpuState:
        """Return name, driver and present clocks of a GPU."""
        nvml = self._nvml
        handle = self._handles[device]
        return GpuState(
            str(nvml.nvmlDeviceGetName(handle)),
            str(nvml.nvmlSystemGetDriverVersion()),
            int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        )


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
