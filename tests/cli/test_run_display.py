from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from olivelike.cli.display.bars import Bars
from olivelike.cli.display.run_display import RunDisplay
from olivelike.engine.execute.events import Event
from olivelike.engine.run_result import RunResult


def result(*, hits: int = 0, executed: int = 0, outputs: tuple[Path, ...] = ()) -> RunResult:
    return RunResult("run", "ok", hits + executed, hits, executed, 79.6, 1_180_000_000, outputs)


STARTED = {
    "workflow": "demo", "run_id": "run", "nodes": 3, "node_ids": ["unet.load", "unet.convert", "unet.materialize"],
}  # fmt: skip


@pytest.fixture
def display():
    display = RunDisplay(live=False)
    display(Event("run_started", STARTED))
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


def begin(display: RunDisplay, node: str, usual: float | None, reason: str = "never run here") -> None:
    display(Event("node_started", {"node": node, "reason": reason, "expected_seconds": usual}))


def test_the_first_line_says_how_much_is_to_be_done_and_how_long_that_takes(display, capsys):
    display(Event("node_hit", {"node": "unet.load", "reason": "stored"}))
    begin(display, "unet.convert", 42.0)
    progress = {"done": 1, "total": 3, "seconds_left": 190.0, "unknown_nodes": 1}
    display(Event("run_progress", progress))
    display(Event("run_progress", progress))
    assert capsys.readouterr().out == (
        "demo: 2 of 3 nodes to run, 1 known; about 3 min and 1 node of unknown time\n"
        "1 of 3  unet.convert      begins, about 40 s\n"
    )


def test_rows_stand_under_each_other_and_count(display, capsys):
    ended = {"seconds": 1.25, "peak_memory_bytes": 402_000_000}
    display(Event("node_finished", {"node": "unet.load", **ended}))
    display(Event("node_finished", {"node": "unet.convert", **ended}))
    display(Event("node_failed", {"node": "unet.materialize", "error": "no room\nmore", "log": "x"}))
    assert capsys.readouterr().out.splitlines() == [
        "1 of 3  unet.load               1.2 s  worker 402.0 MB",
        "2 of 3  unet.convert            1.2 s  worker 402.0 MB",
        "3 of 3  unet.materialize  failed: no room",
    ]


def test_where_there_is_no_terminal_a_long_node_is_spoken_of_now_and_then(display, capsys):
    display(Event("run_progress", {"done": 0, "total": 3, "seconds_left": None, "unknown_nodes": 3}))
    begin(display, "unet.load", None)
    begin(display, "unet.convert", 75.0)
    begin(display, "unet.materialize", 2.0)
    assert capsys.readouterr().out.splitlines()[1:] == ["0 of 3  unet.convert      begins, about 1 min"]
    for seconds in range(10, 130, 10):
        display(Event("node_running", {"node": "unet.convert", "seconds": seconds + 0.2}))
    display(Event("node_running", {"node": "unet.load", "seconds": 10.1}))
    assert capsys.readouterr().out.splitlines() == [
        "0 of 3  unet.convert      30 s so far, usually about 1 min",
        "0 of 3  unet.convert      60 s so far, usually about 1 min",
        "0 of 3  unet.convert      90 s so far, usually about 1 min",
        "0 of 3  unet.load         10 s so far",
    ]


def test_where_there_is_no_terminal_a_node_says_what_is_at_work_and_for_how_long(display, capsys):
    display(Event("run_progress", {"done": 0, "total": 3, "seconds_left": None, "unknown_nodes": 3}))
    begin(display, "unet.load", 20.0)
    capsys.readouterr()
    for note, left in (("picture 1 of 2, step 3 of 8", 41.0), ("picture 2 of 2", None), ("", None)):
        told = {"node": "unet.load", "done": 3, "total": 18, "note": note, "seconds_left": left}
        display(Event("node_progress", told))
        display(
            Event("node_running", {"node": "unet.load", "seconds": 1000.0 + (left is None) * 999 + 999 * (not note)})
        )
    assert capsys.readouterr().out.splitlines() == [
        "0 of 3  unet.load         1000 s so far, picture 1 of 2, step 3 of 8, about 40 s left",
        "0 of 3  unet.load         1999 s so far, picture 2 of 2, usually about 20 s",
        "0 of 3  unet.load         2998 s so far, usually about 20 s",
    ]


def drawn(names: list[str], *advance: tuple[Any, ...], width: int = 120, **run: Any) -> str:
    file = io.StringIO()
    bars = Bars("demo", Console(file=file, force_terminal=True, width=width, color_system=None))
    if run:
        bars.run(**run)
    for name in names:
        bars.start(name)
    for name, *told in advance:
        bars.update(name, *told)
    bars.stop()
    return file.getvalue()


def test_materialize_shows_bytes_and_a_pass_a_percentage():
    text = drawn(
        ["unet.materialize", "unet.prune"], ("unet.materialize", 500_000_000, 1_000_000_000), ("unet.prune", 1, 4)
    )
    assert "500.0 MB of 1.0 GB, 50 %" in text
    assert "25 %" in text


def test_a_note_stands_in_place_of_the_percentage():
    text = drawn(["pipeline.calibrate"], ("pipeline.calibrate", 1, 4, "picture 1 of 2, step 3 of 8"), width=100)
    assert "picture 1 of 2, step 3 of 8, " in text
    assert "25 %" not in text


def test_a_line_for_the_whole_run_counts_nodes_and_says_how_long_they_still_take():
    text = drawn(["unet.prune"], done=12, total=34, seconds_left=130.0, unknown_nodes=0)
    assert "12 of 34 nodes, about 2 min left" in text
    text = drawn(["unet.prune"], done=12, total=34, seconds_left=None, unknown_nodes=22)
    assert "12 of 34 nodes\n" in re.sub(r" +\n", "\n", text.replace("\r", ""))


def test_bytes_fit_beside_the_name_of_an_output_on_a_narrow_terminal():
    node = "vae_decoder.materialize@ship"
    text = drawn([node], (node, 500_000_000, 1_000_000_000), width=80)
    assert "500.0 MB of 1.0 GB, 50 %" in text


def test_a_node_that_reports_nothing_shows_its_time():
    assert "0.0 s" in drawn(["unet.convert"])


def test_progress_of_a_node_that_has_ended_is_ignored():
    bars = Bars("demo", Console(file=io.StringIO()))
    bars.start("unet.convert")
    bars.end("unet.convert")
    bars.update("unet.convert", 1, 2)
    bars.end("unet.convert")
    bars.stop()


def test_with_a_shared_store_what_is_not_here_may_be_fetched(capsys):
    display = RunDisplay(live=False)
    display(Event("run_started", {**STARTED, "shared": "s3://bucket/team"}))
    display(Event("run_progress", {"done": 1, "total": 3, "seconds_left": 180.0, "unknown_nodes": 0}))
    assert capsys.readouterr().out == (
        "demo: 2 of 3 nodes to fetch from s3://bucket/team or to run, 1 known here; about 3 min if all ran\n"
    )
