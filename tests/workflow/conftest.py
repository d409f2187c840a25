"""A project folder with a workflow file and a plugin."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from sample_workflow import PLUGIN, WORKFLOW


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder; the current folder is another one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("OLIVELIKE_CACHE_DIR", raising=False)
    folder = tmp_path / "project"
    (folder / "workflows").mkdir(parents=True)
    (folder / "workflows" / "tune.py").write_text(PLUGIN)
    return folder


@pytest.fixture
def write(project):
    """Write a workflow file into the project and return its path as text."""

    def write(text: str = WORKFLOW, name: str = "mine.yaml") -> str:
        path = Path(project, "workflows", name)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write
