"""Pictures that optimum's pipelines paint, in a process of its environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np


def paint_with_optimum(python, folder, class_name, start, options):
    """Return a picture as an array, what the process told of its versions, and its warnings.

    Args:
        python: The environment's interpreter.
        folder: Pipeline in ONNX.
        class_name: A class of `optimum.onnxruntime`.
        start: File of latents, which must lie in a folder that takes the picture; or a seed, beside `folder`.
        options: Of the call.
    """
    script = Path(__file__).with_name("paint_with_optimum.py")
    picture = (start.parent if isinstance(start, Path) else folder.parent) / "optimum.npy"
    done = subprocess.run(
        [python, script, folder, class_name, picture, str(start), json.dumps(options)],
        check=False,
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    return np.load(picture), json.loads(done.stdout.splitlines()[-1]), done.stderr
