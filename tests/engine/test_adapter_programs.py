"""The programs of `docs/adapters.md` compute what both LoRAs merged do, in Python, C++, C# and JavaScript."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from olivelike.engine.output.low_rank_factors import write_adapters
from olivelike.engine.output.swap import swap_loras
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora
from tests.fixtures.programs import compile_cpp, link_node_packages, program_of, run_csharp

from .conftest import Project

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "adapters.md"
DEMO = ROOT / "olivelike" / "data" / "demo"
WORKFLOW = """
name: demo
source: demo
target: cpu
components: {unet: [convert, fuse, lora_inputs]}
output: models/demo
"""
STRENGTHS = {"ink": 0.8, "glow": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo, two adapters, inputs, and `merged.f32`, which the UNet makes of them with both LoRAs."""
    project = Project(tmp_path_factory.mktemp("programs"))
    project.workflow.parent.mkdir()
    project.workflow.write_text(WORKFLOW, encoding="utf-8")
    project.run()
    project.run("components.unet=[convert, fuse, {lora_inputs: {defaults: false}}]", "output=models/demo_node")
    folder, model = project.folder, project.folder / "models" / "demo"
    loras = []
    for seed, (name, strength) in enumerate(STRENGTHS.items()):
        path = make_lora(folder / f"{name}.safetensors", "kohya", base=DEMO, seed=seed, components=("unet",))
        loras.append(WeightedLora(open_lora(path), strength))
    write_adapters(model, [[WeightedLora(one.file, 1.0)] for one in loras], folder / "adapters")
    random = np.random.default_rng(3)
    sample, states = (random.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 8, 8), (1, 77, 64)))
    sample.tofile(folder / "sample.f32")
    states.tofile(folder / "states.f32")
    session = open_session(model / "unet" / "model.onnx", SessionSettings(), swap_loras(model, loras)["unet"])
    feeds = {"sample": sample, "timestep": np.array([500], np.float32), "encoder_hidden_states": states}
    (made,) = session.inference_session.run(None, feeds)
    made.tofile(folder / "merged.f32")
    return folder


def assert_noise(place: Path) -> None:
    found, merged = (np.fromfile(place / name, np.float32) for name in ("noise.f32", "merged.f32"))
    (place / "noise.f32").unlink()  # The next program writes its own.
    error = np.mean((found - merged).astype(np.float64) ** 2)
    assert 10 * np.log10((merged.max() - merged.min()) ** 2 / error) > 100  # dB


@pytest.mark.slow
def test_the_program_in_python_has_both_loras(place: Path) -> None:
    subprocess.run([sys.executable, "-c", program_of(GUIDE, "python")], cwd=place, check=True)
    assert_noise(place)


@pytest.mark.slow
def test_the_program_in_cpp_has_both_loras(place: Path, request: pytest.FixtureRequest) -> None:
    (place / "draw.cpp").write_text(program_of(GUIDE, "cpp"), encoding="utf-8")
    compile_cpp(place / "draw.cpp", request.config.cache)
    subprocess.run(["./draw"], cwd=place, check=True, env={**os.environ})
    assert_noise(place)


@pytest.mark.slow
def test_the_program_in_javascript_has_both_loras(place: Path, request: pytest.FixtureRequest) -> None:
    link_node_packages(place, request.config.cache)
    (place / "draw.mjs").write_text(program_of(GUIDE, "javascript"), encoding="utf-8")
    subprocess.run(["node", "draw.mjs"], cwd=place, check=True)
    assert_noise(place)


@pytest.mark.slow
def test_the_program_in_csharp_has_both_loras(place: Path, request: pytest.FixtureRequest) -> None:
    (place / "draw.cs").write_text(program_of(GUIDE, "csharp"), encoding="utf-8")
    run_csharp(place / "draw.cs", request.config.cache)
    assert_noise(place)
