"""Every example of `docs/python.md` runs, in a project that has what it names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import olivelike
from olivelike.testing import make_lora
from tests.fixtures.little_pipeline import little_checkpoint

GUIDE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BEGINNING, *EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
SWEEP = "sweep: [{name: plain, components: {text_encoder: [convert]}}, {name: labelled}]\n"
MATRIX = "matrix: {words: {one: {}, two: {components: {text_encoder: [convert]}}}}\n"
SLOW = ("olivelike.convert(",)
"""What exports networks."""


@pytest.fixture
def guide_project(project, little, monkeypatch):
    workflow = (project / "workflows" / "little.yaml").read_text(encoding="utf-8")
    (project / "workflows" / "mine.yaml").write_text(workflow, encoding="utf-8")
    swept = workflow.replace("models/little", "models/swept") + SWEEP
    (project / "workflows" / "swept.yaml").write_text(swept, encoding="utf-8")
    combined = workflow.replace("models/little", "models/fleet") + MATRIX
    (project / "workflows" / "fleet.yaml").write_text(combined, encoding="utf-8")
    shutil.copytree(little, project / "models" / "painter")
    shutil.copytree(little_checkpoint(), project / "painter")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    return project


def name_of(example: str) -> str:
    return ",".join(dict.fromkeys(re.findall(r"olivelike\.([a-z_]+)", example)))


@pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(text, marks=pytest.mark.slow if any(word in text for word in SLOW) else (), id=name_of(text))
        for text in EXAMPLES
    ],
)
def test_the_example_runs(guide_project, example, capsys, monkeypatch):
    assert len(example.splitlines()) <= 5
    if gone := [name for name in re.findall(r"olivelike\.([A-Za-z_]+)", example) if not hasattr(olivelike, name)]:
        pytest.skip(f"takes an extra that is not here: {gone[0]}")
    assert BEGINNING == "from pathlib import Path\nimport olivelike\n"
    if "style.safetensors" in example:
        make_lora(guide_project / "style.safetensors", "kohya", base=guide_project / "painter")
    if "circle.png" in example and "save(" not in example:
        from PIL import Image

        Image.new("RGB", (8, 8)).save("circle.png")
    if "diagnose" in example:  # `test_doctor.py` asks all providers.
        monkeypatch.setattr("olivelike.measure.doctor.diagnosis.listed_providers", lambda _: ["CPUExecutionProvider"])
        monkeypatch.setattr("olivelike.measure.doctor.diagnosis.find_spec", lambda _: None)
    if "export_web" in example:
        web_outputs = pytest.importorskip("tests.extras.deploy.web_outputs")
        web_outputs.take_as_release(monkeypatch)
        web_outputs.write_output(Path("models/web"), web_outputs.files_of_an_output())
        Path("onnxruntime-web-1.30.0.tgz").write_bytes(web_outputs.TARBALL)
    exec(BEGINNING + example, {})
