from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from olivelike.cli.bars import Bars
from olivelike.cli.run_display import RunDisplay
from olivelike.engine import RunResult
from olivelike.executor.events import Event


def result(*, hits: int = 0, executed: int = 0, outputs: tuple[Path, ...] = ()) -> RunResult:
    return RunResult("run", "ok", hits + executed, hits, executed, 79.6, 1_180_000_000, outputs)


@pytest.fixture
def display():
    display = RunDisplay(live=False)
    display(Event("run_started", {"workflow": "demo", "run_id": "run", "nodes": 3}))
    return display


def test_the_summary_counts_what_ran_and_what_was_stored(display, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    display.summarise(result(hits=15, executed=5, outputs=(tmp_path / "models" / "demo",)))
    assert capsys.readouterr().out == (
        "demo: 5 of 20 nodes ran in 79.6 s, 15 were stored, peak memory 1.2 GB; wrote models/demo\n"
    )


def test_outputs_outside_the_current_folder_are_named_in_full(display, capsys):
    display.summarise(result(hits=2, outputs=(Path("/somewhere/a"), Path("/somewhere/b"))))
    assert capsys.readouterr().out == (
        "demo: nothing to do, /somewhere/a and /somewhere/b are up to date (2 of 2 nodes stored, 79.6 s)\n"
    )


def test_a_completed_output_is_not_called_up_to_date_already(display, capsys):
    display(Event("output_published", {"path": "/somewhere/a"}))
    display.summarise(result(hits=2, outputs=(Path("/somewhere/a"),)))
    assert "no node ran, /somewhere/a was brought up to date" in capsys.readouterr().out


def test_warnings_go_to_standard_error(display, capsys):
    display(Event("warning", {"message": "the hub was not reached"}))
    assert capsys.readouterr() == ("", "warning: the hub was not reached\n")


def test_a_waiting_node_says_for_what(display, capsys):
    display(Event("node_waiting", {"node": "unet.convert", "reason": "another run is making it"}))
    assert capsys.readouterr().out == "unet.convert waits: another run is making it\n"


def drawn(names: list[str], *advance: tuple[str, int, int]) -> str:
    file = io.StringIO()
    bars = Bars(Console(file=file, force_terminal=True, width=120, color_system=None))
    for name in names:
        bars.start(name)
    for name, done, total in advance:
        bars.update(name, done, total)
    bars.stop()
    return file.getvalue()


def test_materialize_shows_bytes_and_a_pass_a_percentage():
    text = drawn(
        ["unet.materialize", "unet.prune"],
        ("unet.materialize", 500_000_000, 1_000_000_000),
        ("unet.prune", 1, 4),
    )
    assert "500.0 MB of 1.0 GB, 50 %" in text
    assert "25 %" in text


def test_a_node_that_reports_nothing_shows_its_time():
    assert "0.0 s" in drawn(["unet.convert"])


def test_progress_of_a_node_that_has_ended_is_ignored():
    bars = Bars(Console(file=io.StringIO()))
    bars.start("unet.convert")
    bars.end("unet.convert")
    bars.update("unet.convert", 1, 2)
    bars.end("unet.convert")
    bars.stop()
