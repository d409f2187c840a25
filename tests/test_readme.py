"""Every command in the README is run here or exists as a make target."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from olivelike.cli import app
from olivelike.cli.app import run_command_line

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| `olivelike ([a-z-]+)", README, re.MULTILINE)


def test_the_make_targets_of_the_readme_exist() -> None:
    for target in re.findall(r"^make ([a-z-]+)", README, re.MULTILINE):
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr


GONE = {"ablate", "bench", "bom", "export-web", "package", "sign"} - set(app.COMMANDS)
"""Commands of extras whose folders are gone."""


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in GONE])
def test_the_commands_of_the_readme_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([command, "--help"]) == 0
    assert f"olivelike {command}" in capsys.readouterr().out


def test_the_five_line_workflow_of_the_readme_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "my_workflow.yaml"
    path.write_text(block, encoding="utf-8")
    assert len(yaml.safe_load(block)) == 4
    done = subprocess.run(
        [sys.executable, "-m", "olivelike", "validate", str(path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_that_the_readme_links_to_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_the_pass_of_the_contributing_guide_works(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "clip_names.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "olivelike", "schema", "--plugin", str(tmp_path / "clip_names.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "clip_names" in done.stdout
