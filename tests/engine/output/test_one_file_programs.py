"""The programs of `docs/one-file.md` draw a red circle with the demo, in Python and in Node.js."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from olivelike.graphs.one_file.schedules import SCHEDULERS
from olivelike.measure.captions.caption_reading import read_picture
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.latents import draw_noise, generators

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
    for layout, name in (("single", "demo_one"), ("single-ids", "demo_ids"), ("diffusers", "demo")):
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


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_texts_draw_what_generate_draws_from_the_same_noise(place: Path, scheduler: str) -> None:
    extensions = pytest.importorskip("onnxruntime_extensions", reason="pip install olivelike[tokenizer]")
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    session = onnxruntime.InferenceSession(place / "models" / "demo_one" / "pipeline.onnx", options)
    pipeline = open_pipeline(place / "models" / "demo")
    for prompt, negative, guidance in (
        ("a small blue square, top left", "red", 7.5),
        ("(it's) 100 triangles!", "", 1.0),
    ):
        sources = generators([5])
        given = {
            "prompt": np.array([prompt]),
            "negative_prompt": np.array([negative]),
            "scheduler": np.array([scheduler]),
            "steps": np.array([12]),
            "guidance": np.array([guidance], np.float32),
            "noise": np.stack([draw_noise((4, 8, 8), sources).numpy() for _ in range(12)]),
        }
        images, flags = session.run(None, given)
        request = Request(
            (prompt,), negative_prompt=negative, steps=12, guidance_scale=guidance, scheduler=scheduler, seed=5,
            prompt_weights=False,
        )  # fmt: skip
        made = pipeline.generate(request).pictures[0]
        assert bool(flags[0]) == made.flagged
        error = float(np.mean((images[0] - np.asarray(made.image, np.float64)) ** 2))
        assert error == 0 or 10 * np.log10(255**2 / error) >= 50


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
