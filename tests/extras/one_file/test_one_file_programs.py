"""The programs of `docs/one-file.md` draw a red circle with the demo, in Python, Node.js, C++ and C#."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.latents import draw_noise, generators
from tests.fixtures.programs import compile_cpp, link_node_packages, program_of, run_csharp
from tools.train_demo.captions.caption_reading import read_picture

GUIDE = Path(__file__).parents[3] / "docs" / "one-file.md"

pytestmark = pytest.mark.slow


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
    subprocess.run([sys.executable, "-c", program_of(GUIDE, "python")], cwd=place, check=True)
    assert_shows_a_red_circle(place / "picture.png")


@pytest.mark.parametrize("scheduler", ["DDIM", "Euler", "Euler a", "DPM++ 2M Karras", "UniPC", "Heun", "LCM"])
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
    link_node_packages(place, request.config.cache)
    (place / "draw.mjs").write_text(program_of(GUIDE, "javascript"), encoding="utf-8")
    subprocess.run(["node", "draw.mjs"], cwd=place, check=True)
    assert_shows_a_red_circle(place / "picture.ppm")


def test_the_program_in_cpp_draws(place: Path, request: pytest.FixtureRequest) -> None:
    (place / "draw.cpp").write_text(program_of(GUIDE, "cpp"), encoding="utf-8")
    compile_cpp(place / "draw.cpp", request.config.cache)
    (place / "picture.ppm").unlink(missing_ok=True)
    subprocess.run(["./draw"], cwd=place, check=True)
    assert_shows_a_red_circle(place / "picture.ppm")


def test_the_program_in_csharp_draws(place: Path, request: pytest.FixtureRequest) -> None:
    (place / "draw.cs").write_text(program_of(GUIDE, "csharp"), encoding="utf-8")
    (place / "picture.ppm").unlink(missing_ok=True)
    run_csharp(place / "draw.cs", request.config.cache, extensions=True)
    assert_shows_a_red_circle(place / "picture.ppm")
