"""What a run ran on: versions of the libraries, kind of machine."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from olivelike.model.records.run_record import HostRecord

TOOLS = (
    "olivelike", "torch", "diffusers", "transformers", "onnx", "onnx-ir", "onnxscript",
    "onnxruntime-gpu", "onnxruntime", "onnxruntime-directml", "numpy", "safetensors",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that matter."""
    found = {"python": platform.python_version()}
    for tool in TOOLS:
        try:
            found[tool] = version(tool)
        except PackageNotFoundError:
            continue
    return found


def host() -> HostRecord:
    """Return what kind of machine this is; nothing that names it."""
    import psutil

    return HostRecord(
        platform.system(),
        platform.release(),
        platform.machine(),
        os.cpu_count(),
        psutil.virtual_memory().total,
        sys.byteorder,
    )
