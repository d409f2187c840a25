"""Outputs that are written while the files of their source are still being hashed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from olivelike.engine.kinds.materialize_node import MaterializeTask
from olivelike.errors import SourceError
from olivelike.model.records.output import OutputRecord
from olivelike.store import Store
from tests.fixtures.inline_executor import InlineExecutor

if TYPE_CHECKING:
    from olivelike.engine.kinds.kind import Task

    from .conftest import Project

FOLDERS = {"text_encoder": "text_encoder", "vae_decoder": "vae"}


@pytest.fixture
def late(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    """Files are hashed once their networks are written, and what is given has been done with each."""
    written, hashed = {name: threading.Event() for name in FOLDERS}, Store.file_digest

    class Watched(InlineExecutor):
        def _do(self, task: Task) -> None:
            super()._do(task)
            if isinstance(task, MaterializeTask):
                written[task.place.component].set()

    def prepare(before: Callable[[Path], None]) -> None:
        def file_digest(store: Store, path: Path) -> str:
            (component,) = (name for name, folder in FOLDERS.items() if folder == path.parent.name)
            assert written[component].wait(60), "it was not written before"
            before(path)
            return hashed(store, path)

        project.executor = Watched
        monkeypatch.setattr(Store, "file_digest", file_digest)

    return prepare


def test_the_output_is_that_of_files_whose_digests_are_known(project: Project, late) -> None:
    known, files = OutputRecord.require(project.output), project.files()
    shutil.rmtree(project.output)
    late(lambda _: None)
    assert project.run().executed == len(FOLDERS)
    assert (OutputRecord.require(project.output), project.files()) == (known, files)
    assert set(project.reasons().values()) == {"the output folder lacks it"}
    assert project.run().executed == 0


def test_a_file_that_changes_before_it_is_hashed_is_refused(project: Project, late) -> None:
    shutil.rmtree(project.output)

    def change(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1] + b"\1")

    late(change)
    with pytest.raises(SourceError, match="changed while it was read; run again when it is complete"):
        project.run()
    assert not project.output.exists()
    assert project.leftovers() == []


def test_what_may_be_there_already_waits_for_digests(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olivelike.engine.plan.inputs.FileDigests.is_ready", lambda *_: False)
    monkeypatch.setattr("olivelike.engine.plan.inputs.FileDigests.has_begun", lambda *_: True)
    started = []

    class StoppedError(Exception):
        pass

    def poll(executor: object, timeout: float) -> None:
        started.extend(executor._tasks)
        raise StoppedError

    monkeypatch.setattr(InlineExecutor, "next_answer", poll)
    with pytest.raises(StoppedError):
        project.run("components.vae_decoder=[convert]")
    assert [task.place.component for task in started] == ["vae_decoder"]
