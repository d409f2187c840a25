"""What a row was measured on."""

from __future__ import annotations

import datetime as dt
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.engine.environment import host, versions
from olivelike.measure.bench.nvidia_memory import open_driver

if TYPE_CHECKING:
    from olivelike.measure.bench.row import Value
    from olivelike.runtime.sessions.session_settings import SessionSettings

_CPUINFO: Final = Path("/proc/cpuinfo")
_ONNXRUNTIME: Final = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")


def describe_machine(folder: Path, sessions: SessionSettings, gpu: int | None) -> dict[str, Value]:
    """Return system, processors, present clocks and versions by column; nothing that names the machine.

    Args:
        folder: what is measured.
        sessions: how it runs.
        gpu: number of the NVIDIA GPU that it runs on, if it does.
    """
    import psutil

    found, here = versions(), host()
    frequency = psutil.cpu_freq()
    values: dict[str, Value] = {
        "folder": folder.resolve().name,
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "system": f"{here.system} {here.release} {here.machine}",
        "cpu": _cpu_name(),
        "cores": here.cores,
        "threads": sessions.intra_threads or None,
        "cpu_MHz": round(frequency.current) if frequency else None,
        "python_version": found["python"],
        "onnxruntime_version": next((found[name] for name in _ONNXRUNTIME if name in found), None),
        "openvino_version": _version("openvino"),
    }
    values |= {
        f"{name}_version": found.get(name) for name in ("olivelike", "torch", "diffusers", "transformers")
    }
    if gpu is not None and (driver := open_driver()) is not None and (state := driver.state(gpu)) is not None:
        values |= {
            "gpu": state.name,
            "gpu_MHz": state.clock_mhz,
            "gpu_memory_MHz": state.memory_clock_mhz,
            "driver": state.driver,
        }
    return values


def _cpu_name() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
