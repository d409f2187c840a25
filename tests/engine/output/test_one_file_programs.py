"""The programs of `docs/one-file.md` draw a red circle with the demo, in Python and in Node.js."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from olivelike.measure.captions.caption_reading import read_picture

GUIDE = Path(__file__).parents[3] / "docs" / "one-file.md"
PACKAGES = ("onnxruntime-node@1.30.0", "@huggingface/tokenizers@0.2.0")

pytestmark = pytest.mark.slow


def program(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the guide's commands were typed."""
    folder = tmp_path_factory.mktemp("programs")
    for layout, name in (("single", "demo_one"), ("single-ids", "demo_ids")):
        command = [sys.executable, "-m", "olivelike", "convert", "demo", "-t", "cpu", "--layout", layout]
        subprocess.run([*command, "-o", f"models/{name}", "--cache-dir", "cache"], cwd=folder, check=True)
    return folder


def assert_shows_a_red_circle(picture: Path) -> None:
    shown = read_picture(np.asarray(Image.open(picture)))
    assert (shown.color, shown.shape, shown.background) == ("red", "circle", "white")


def test_the_program_in_python_draws(place: Path) -> None:
    pytest.importorskip("onnxruntime_extensions", reason="pip install olivelike[tokenizer]")
    subprocess.run([sys.executable, "-c", program("python")], cwd=place, check=True)
    assert_shows_a_red_circle(place / "picture.png")


def test_the_program_in_javascript_draws(place: Path, request: pytest.FixtureRequest) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed (`node`, `npm`)")
    packages = request.config.cache.mkdir("one-file-node")
    if not (packages / "node_modules" / "onnxruntime-node").is_dir():
        skipped = {**os.environ, "ONNXRUNTIME_NODE_INSTALL_CUDA": "skip"}
        install = ["npm", "install", "--no-audit", "--no-fund", *PACKAGES]
        done = subprocess.run(install, cwd=packages, env=skipped, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"npm's registry does not answer: {done.stderr.strip()[-200:]}")
    (place / "node_modules").symlink_to(packages / "node_modules")
    (place / "draw.mjs").write_text(program("javascript"), encoding="utf-8")
    subprocess.run(["node", "draw.mjs"], cwd=place, check=True)
    assert_shows_a_red_circle(place / "picture.ppm")
