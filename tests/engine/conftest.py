"""A project that has run once, made once per test session and copied for each test that changes it."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from olivelike.engine.execute.executor import ExecutorMaker
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.engine.run_result import RunResult
from olivelike.errors import OlivelikeError
from olivelike.graphs.export import export_component
from olivelike.graphs.shelf import Shelf
from olivelike.measure.report import write_report
from olivelike.model import Architecture, Graph
from olivelike.testing import load_model, models
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.models import lend_graphs
from tests.fixtures.inline_executor import InlineExecutor

WORKFLOW = """
name: small
source: ./checkpoint
target: cuda
components:
  text_encoder: [convert, float16]
  vae_decoder: [convert, float16]
output: models/small
"""


@dataclass
class Project:
    """A project folder and what its last run did."""

    folder: Path
    result: RunResult | None = None
    error: OlivelikeError | None = None
    events: list[Any] = field(default_factory=list)
    executor: ExecutorMaker = InlineExecutor
    """Tests that are about processes say `ProcessExecutor`."""

    @property
    def workflow(self) -> Path:
        return self.folder / "workflows" / "small.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "models" / "small"

    def run(self, *overrides: str, **options: Any) -> RunResult:
        """Run the workflow without a shelf, for the VAE of the tests is the demo's; keep the events, and the error.

        In this process, `convert` runs as ever but does not trace what the tests' shelf has.
        """
        self.events, self.error = [], None
        try:
            asked = Options(overrides=overrides, **options)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("olivelike.engine.preparation.open_shelf", lambda: Shelf([]))
                patch.setattr("olivelike.graphs.export.export_component", _exported_before)
                self.result = run(str(self.workflow), asked, self.events.append, write_report, self.executor)
        except OlivelikeError as error:
            self.error = error
            raise
        return self.result

    def executed(self) -> set[str]:
        """Nodes that ran to their end in the last run."""
        return {event.data["node"] for event in self.events if event.name == "node_finished"}

    def failed(self) -> set[str]:
        return {event.data["node"] for event in self.events if event.name == "node_failed"}

    def reasons(self) -> dict[str, str]:
        return {e.data["node"]: e.data["reason"] for e in self.events if e.name == "node_started"}

    def counts(self) -> Counter[str]:
        return Counter(event.name for event in self.events)

    def edit(self, old: str, new: str) -> None:
        text = self.workflow.read_text(encoding="utf-8")
        assert old in text
        self.workflow.write_text(text.replace(old, new), encoding="utf-8")

    def files(self, skip: tuple[str, ...] = ("olivelike.json",)) -> dict[str, bytes]:
        """Content of every file of the output but its record, by relative path."""
        paths = (path for path in self.output.rglob("*") if path.is_file() and path.name not in skip)
        return {path.relative_to(self.output).as_posix(): path.read_bytes() for path in paths}

    def leftovers(self) -> list[Path]:
        """What a run must not leave behind."""
        found = [*(self.folder / "models").glob(".*"), *(self.folder / "cache" / "tmp").glob("*")]
        return [path for path in found if f"-{os.getpid()}-" not in path.name]


def _exported_before(architecture: Architecture, logger: logging.Logger, *, any_size: bool = False) -> Graph:
    known = None if any_size else models._shelf().graph(architecture)
    return Graph(known) if known is not None else export_component(architecture, logger, any_size=any_size)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tiny checkpoints of one architecture: `one`, `two` (other weights), `hub` (`one` as hubs hold it)."""
    root = tmp_path_factory.mktemp("checkpoints")
    make_checkpoint(root / "one", seed=0)
    make_checkpoint(root / "two", seed=1)
    make_checkpoint(root / "hub", seed=0, layout="hub")
    return root


def lend_graphs_of(checkpoint: Path, project: Path, *components: str) -> None:
    """Spare a new project the tracing of networks that were traced on this machine before."""
    lend_graphs(project / "cache", [load_model(checkpoint, name).architecture for name in components])


def run_project(folder: Path, workflow: str, checkpoint: Path, *components: str) -> Project:
    """Run a new project; tracing of these networks is spared as by `lend_graphs_of`."""
    project = Project(folder)
    project.workflow.parent.mkdir(parents=True, exist_ok=True)
    project.workflow.write_text(workflow, encoding="utf-8")
    lend_graphs_of(checkpoint, folder, *components)
    project.run()
    return project


@pytest.fixture(scope="session")
def template(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project after its first run; not to be changed."""
    folder = tmp_path_factory.mktemp("template") / "project"
    shutil.copytree(checkpoints / "one", folder / "checkpoint")
    return run_project(folder, WORKFLOW, folder / "checkpoint", "text_encoder", "vae_decoder")


@pytest.fixture
def project(template: Project, tmp_path: Path) -> Project:
    """A copy of the project after its first run, in another place."""
    shutil.copytree(template.folder, tmp_path / "project")
    return Project(tmp_path / "project")
