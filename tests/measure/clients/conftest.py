"""An environment of optimum's own, since its last release needs an older transformers; pytest's cache keeps it."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPTIMUM = (
    "optimum-onnx[onnxruntime]==0.1.0", "transformers>=4.57,<4.58", "diffusers==0.36.*", "torch>=2.11,<2.14",
    "accelerate",
)  # fmt: skip


@pytest.fixture(scope="session")
def optimum_python(request):
    """The interpreter of an environment with optimum; made once, about 1.3 GB."""
    folder = request.config.cache.mkdir("optimum")
    python = folder / "bin" / "python"
    wanted = folder / "requirements.txt"
    if not wanted.is_file() or wanted.read_text().split() != list(OPTIMUM):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *OPTIMUM], check=True)
        wanted.write_text("\n".join(OPTIMUM))
    return python
