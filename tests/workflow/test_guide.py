"""The examples in `docs/workflows.md` are true."""

from __future__ import annotations

import re
from pathlib import Path

from olivelike.families import COMPONENTS
from olivelike.model.targets import TARGETS
from olivelike.workflow import load_workflow
from olivelike.workflow.matrix import read_combinations
from olivelike.workflow.places import find_workflow
from olivelike.workflow.workflow_file import WorkflowFile

GUIDE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


def test_whole_examples_are_valid(tmp_path):
    whole = [text for text in EXAMPLES if "output:" in text]
    assert len(whole) == 3
    for text in whole:
        (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        for one in read_combinations(find_workflow(str(tmp_path / "mine.yaml"))) or (None,):
            load_workflow(str(tmp_path / "mine.yaml"), combination=one)


def test_short_examples_are_valid_in_a_whole_file(tmp_path):
    lines = [line for text in EXAMPLES for line in text.splitlines() if line.startswith(("source: {", "target: {"))]
    assert len(lines) == 3
    for line in lines:
        (tmp_path / "mine.yaml").write_text(f"extends: sd15_cpu\n{line}\n", encoding="utf-8")
        load_workflow(str(tmp_path / "mine.yaml"))


def test_every_override_in_it_works(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: sd15_cuda\n", encoding="utf-8")
    overrides = re.findall(r"--set '?([a-z][\w.]*=[^\s']*)", GUIDE)
    overrides.remove("plugins=[FILE]`")
    assert len(overrides) == 6
    for override in overrides:
        load_workflow(str(tmp_path / "mine.yaml"), [override])


def test_it_names_every_key_component_and_target():
    for name in (*WorkflowFile.model_fields, *COMPONENTS, *TARGETS):
        assert f"`{name}`" in GUIDE
