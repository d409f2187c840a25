"""The programs of `docs/schedules.md` go through the steps of `generate`, in Python, Node.js, C++ and C#."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from olivelike.engine.output.scheduler_model import scheduler_model
from olivelike.runtime.schedulers.class_settings import scheduler_settings
from olivelike.runtime.schedulers.schedule import make_schedule
from tests.fixtures.programs import compile_cpp, link_node_packages, program_of, run_csharp

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "schedules.md"
CONFIG = ROOT / "olivelike" / "data" / "demo" / "scheduler" / "scheduler_config.json"
SHAPE = (1, 4, 8, 8)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the model that the programs open, and their noise."""
    model = tmp_path / "models" / "demo" / "scheduler" / "model.onnx"
    model.parent.mkdir(parents=True)
    model.write_bytes(scheduler_model(json.loads(CONFIG.read_text(encoding="utf-8"))))
    np.random.default_rng(0).standard_normal((22, *SHAPE), np.float32).tofile(tmp_path / "noise.f32")
    return tmp_path


def assert_latents(place: Path) -> None:
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    schedule = make_schedule(scheduler_settings("Euler a", config), 20)
    draws = iter(np.fromfile(place / "noise.f32", np.float32).reshape(-1, *SHAPE))
    latents, kept = next(draws) * schedule.first, schedule.kept
    for call in schedule.calls:
        output = np.tanh(schedule.scaled(latents, call) + schedule.timesteps[call] / 1000)
        noise = next(draws) if schedule.draws[call] else 0.0
        latents, kept, _ = schedule.advance(call, latents, kept, output, noise)
    found = np.fromfile(place / "latents.f32", np.float32).reshape(SHAPE)
    np.testing.assert_allclose(found, latents, rtol=1e-4, atol=1e-4)


def test_the_program_in_python_takes_the_steps_of_generate(place: Path) -> None:
    subprocess.run([sys.executable, "-c", program_of(GUIDE, "python")], cwd=place, check=True)
    assert_latents(place)


@pytest.mark.slow
def test_the_program_in_javascript_takes_the_steps_of_generate(place: Path, request: pytest.FixtureRequest) -> None:
    link_node_packages(place, request.config.cache)
    (place / "draw.mjs").write_text(program_of(GUIDE, "javascript"), encoding="utf-8")
    subprocess.run(["node", "draw.mjs"], cwd=place, check=True)
    assert_latents(place)


@pytest.mark.slow
def test_the_program_in_cpp_takes_the_steps_of_generate(place: Path, request: pytest.FixtureRequest) -> None:
    (place / "draw.cpp").write_text(program_of(GUIDE, "cpp"), encoding="utf-8")
    compile_cpp(place / "draw.cpp", request.config.cache)
    subprocess.run(["./draw"], cwd=place, check=True)
    assert_latents(place)


@pytest.mark.slow
def test_the_program_in_csharp_takes_the_steps_of_generate(place: Path, request: pytest.FixtureRequest) -> None:
    (place / "draw.cs").write_text(program_of(GUIDE, "csharp"), encoding="utf-8")
    run_csharp(place / "draw.cs", request.config.cache)
    assert_latents(place)
