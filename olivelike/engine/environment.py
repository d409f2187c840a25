"""What a run ran on: versions of the libraries, kind of machine."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

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


def host() -> dict[str, Any]:
    """Return what kind of machine this is; nothing that names it."""
    import psutil

    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "byteorder": sys.byteorder,
    }
