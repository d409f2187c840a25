"""NVIDIA GPUs, by the driver's own library (`pip install nvidia-ml-py`): memory per process, clocks, driver."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from olivelike.runtime.sessions.devices import NVIDIA, find_device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from olivelike.runtime.sessions.session_settings import SessionSettings


@dataclass(frozen=True)
class GpuState:
    """A GPU, and how fast it runs at the moment; `None` for what the driver does not tell of it."""

    name: str | None
    driver: str | None
    clock_mhz: int | None
    """Of the multiprocessors."""
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

    Raises:
        SessionError: if the GPU that they name is not there.
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
