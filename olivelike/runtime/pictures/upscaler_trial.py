"""A child process that runs an upscaler once: a file of a stranger may hold a loop without end, and no more is lost.

It prints the shape of what comes out, as JSON, or what failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from olivelike.errors import SessionError

_SECONDS: Final = 60.0
"""Most seconds for opening a network and one small run; the largest upscalers take some."""


def try_upscaler(path: Path, height: int, width: int) -> tuple[int, ...]:
    """Return the shape of what an upscaler makes of black, (1, 3, height, width), on the CPU.

    Raises `SessionError` if it can't be run, or does not end.
    """
    command = [sys.executable, "-P", "-m", __name__, str(path), str(height), str(width)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise SessionError(
            f"{path}: the upscaler does not end within {_SECONDS:g} s with {width}x{height} pixels on the CPU; take "
            "another one"
        ) from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        answer = {"failed": f"the process that tried it ended with status {done.returncode}; it may take much memory"}
    if "failed" in answer:
        raise SessionError(f"{path}: the upscaler can't be run on the CPU: {answer['failed']}")
    return tuple(answer["shape"])


def main() -> None:
    """Be the child."""
    import numpy as np
    import onnxruntime

    from olivelike.runtime.sessions.engine_errors import onnxruntime_errors

    path, height, width = sys.argv[1], *map(int, sys.argv[2:])
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (taken,) = session.get_inputs()
        dtype = np.float16 if "float16" in taken.type else np.float32
        (found,) = session.run(None, {taken.name: np.zeros((1, 3, height, width), dtype)})
    except onnxruntime_errors() as error:
        sys.stdout.write(json.dumps({"failed": str(error)}) + "\n")
    else:
        sys.stdout.write(json.dumps({"shape": found.shape}) + "\n")


if __name__ == "__main__":
    main()
