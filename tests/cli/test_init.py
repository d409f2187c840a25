from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml


def test_a_new_project_validates_and_plans(empty_folder, warm_project, cli):
    result = cli("init", "my-Pictures", "--source", warm_project / "checkpoint", "--target", "cuda")
    assert result.status == 0
    assert result.out.splitlines()[-1] == "next: olivelike plan my-Pictures/workflows/my_pictures.yaml"
    workflow = Path("my-Pictures/workflows/my_pictures.yaml")
    assert cli("validate", workflow).status == 0
    plan = cli("plan", workflow)
    assert plan.status == 0
    assert "text_encoder.name_graph" in plan.out
    content = yaml.safe_load(workflow.read_text())
    assert (content["name"], content["target"], content["output"]) == ("my_pictures", "cuda", "models/my_pictures")


def test_the_test_of_the_example_plugin_passes(empty_folder, cli):
    cli("init")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "plugins"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_default_folder_is_the_current_one(empty_folder, cli):
    result = cli("init")
    assert "wrote workflows/empty.yaml" in result.out
    for file in ("README.md", "cache/.gitignore", "plugins/name_graph.py", "plugins/test_name_graph.py"):
        assert (empty_folder / file).is_file()
    schema_line = (empty_folder / "workflows" / "empty.yaml").read_text().partition("\n")[0]
    assert schema_line == "# yaml-language-server: $schema=workflow.schema.json"
    assert '"name_graph"' in (empty_folder / "workflows" / "workflow.schema.json").read_text()


@pytest.mark.parametrize("file", ["README.md", "plugins/test_name_graph.py", "workflows/workflow.schema.json"])
def test_nothing_is_overwritten_and_then_nothing_is_written(empty_folder, cli, file):
    path = empty_folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = sorted(empty_folder.rglob("*"))
    result = cli("init")
    assert result.status == 2
    assert f"{path} exists already" in result.err
    assert sorted(empty_folder.rglob("*")) == before
    assert path.read_text() == "mine"


def test_an_unknown_target_is_refused_before_anything_is_written(empty_folder, cli):
    result = cli("init", "--target", "cudda")
    assert result.status == 2
    assert "did you mean 'cuda'?" in result.err
    assert not list(empty_folder.iterdir())
