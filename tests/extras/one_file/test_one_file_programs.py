"""The programs of `docs/one-file.md` draw a red circle with the demo, in Python, Node.js and C++."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlretrieve

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.latents import draw_noise, generators
from tools.train_demo.captions.caption_reading import read_picture

GUIDE = Path(__file__).parents[3] / "docs" / "one-file.md"
PACKAGES = ("onnxruntime-node@1.30.0", "@huggingface/tokenizers@0.2.0")
EXTENSIONS = "com.github.asus4.onnxruntime-extensions@0.4.9"
"""A package of npm that has the extensions for Linux as a library, and their header."""
HEADERS = "http://deb.debian.org/debian/pool/main/o/onnxruntime/libonnxruntime-dev_1.21.0+dfsg-1_amd64.deb"

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


@pytest.fixture(scope="module")
def for_cpp(request: pytest.FixtureRequest) -> Path:
    """A folder with headers in `include`, and the libraries of ONNX Runtime and its extensions."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("what is fetched for C++ is for Linux on x86-64")
    if missing := [tool for tool in ("g++", "npm", "dpkg-deb", "tar") if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    kept = request.config.cache.mkdir("one-file-cpp")
    if not (kept / "libortextensions.so.0").is_file():
        done = subprocess.run(["npm", "pack", EXTENSIONS], cwd=kept, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"npm's registry does not answer: {done.stderr.strip()[-200:]}")
        try:
            urlretrieve(HEADERS, kept / "headers.deb")
        except OSError as error:
            pytest.skip(f"Debian's packages are not to be had: {error}")
        (package,) = kept.glob("*.tgz")
        subprocess.run(["tar", "xzf", package.name], cwd=kept, check=True)
        subprocess.run(["dpkg-deb", "-x", "headers.deb", "headers"], cwd=kept, check=True)
        shutil.copytree(kept / "headers" / "usr" / "include" / "onnxruntime", kept / "include", dirs_exist_ok=True)
        shutil.copy(next((kept / "package").rglob("onnxruntime_extensions.h")), kept / "include")
        library = next((kept / "package" / "Plugins" / "Linux" / "x64").glob("libortextensions.so"))
        shutil.copy(library, kept / "libortextensions.so.0")
        for leftover in ("package", "headers"):
            shutil.rmtree(kept / leftover)
        package.unlink()
    return kept


def test_the_program_in_cpp_draws(place: Path, for_cpp: Path) -> None:
    (place / "draw.cpp").write_text(program("cpp"), encoding="utf-8")
    libraries = [*(Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), *for_cpp.glob("*.so.0")]
    if len(libraries) != 2:
        pytest.skip("this build of ONNX Runtime has no libonnxruntime.so")
    for library, name in zip(libraries, ("libonnxruntime.so.1", "libortextensions.so.0"), strict=True):
        (place / name).symlink_to(library)
    compiler = ["g++", "-std=c++17", "-Wall", "-Werror", "-isystem", str(for_cpp / "include"), "draw.cpp", "-o", "draw"]
    linked = ["-L.", "-l:libonnxruntime.so.1", "-l:libortextensions.so.0", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*compiler, *linked], cwd=place, check=True)
    (place / "picture.ppm").unlink(missing_ok=True)
    subprocess.run(["./draw"], cwd=place, check=True)
    assert_shows_a_red_circle(place / "picture.ppm")
