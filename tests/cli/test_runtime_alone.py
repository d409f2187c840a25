"""Drawing without the modules of ours that `olivelike-runtime` lacks, and without what the rest of olivelike needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint
from tools.wheels import is_runtime, tracked

ALONE = """
import sys

OURS = set({ours!r})

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {others!r} or (top == "olivelike" and name not in OURS):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
OTHERS = {"diffusers", "diskcache", "onnx", "onnx_ir", "onnxscript", "peft", "torch", "transformers"}


@pytest.fixture
def alone(tmp_path):
    """The command line, as a process with that alone, and so its children."""
    files = (Path(name) for name in tracked() if is_runtime(name) and name.endswith(".py"))
    ours = sorted(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ALONE.format(ours=ours, others=OTHERS), encoding="utf-8")

    def run(*words: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "olivelike", *map(str, words)],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_pictures_are_drawn_and_loras_are_put_in(alone, little, tmp_path):
    lora = tmp_path / "style.safetensors"
    make_lora(lora, "kohya", base=little_checkpoint(), modules="attention+ff")
    alone("generate", little, "a red circle", "--steps", "1", "--lora", f"{lora}:0.5", "-o", "drawn.png")
    told = alone("info", "drawn.png")
    assert "drawn.png: a picture, PNG" in told
    assert "style" in told


def test_folders_and_files_are_told_of(alone, little):
    assert f"{little}: " in alone("info", little)
