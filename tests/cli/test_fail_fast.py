"""Runs that stop at the first failure, as `olivelike convert` does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.engine.run_result import RunResult
from olivelike.errors import PassError

SWEEP = """\
extends: little.yaml
name: sweep
plugins: [../plugins]
output: models/sweep
sweep:
  - {name: good, components: {text_encoder: [convert, slow]}}
  - {name: bad, components: {text_encoder: [convert, label, refuse]}}
"""


def test_a_failure_ends_what_runs_beside_it_and_leaves_no_temporary_files(project, worker_processes):
    Path("workflows/sweep.yaml").write_text(SWEEP)
    events = []
    begin = time.monotonic()
    with pytest.raises(PassError, match="not to its liking"):
        run("workflows/sweep.yaml", Options(fail_fast=True, workers=2), events.append)
    assert time.monotonic() - begin < 300  # `slow` takes ten minutes.
    skipped = {event.data["node"]: event.data["reason"] for event in events if event.name == "node_skipped"}
    assert skipped["text_encoder.slow@good"] == "text_encoder.refuse@bad failed"
    assert events[-1].name == "run_finished"
    assert not list(Path("cache/tmp").glob("*/*"))


def test_progress_of_a_run_counts_every_node_and_says_what_is_expected(project):
    events = []
    changed = "components.text_encoder.1={label: {text: other}}"
    run("workflows/little.yaml", Options(overrides=(changed,)), events.append)
    started = next(event.data for event in events if event.name == "run_started")
    assert started["node_ids"][:2] == ["text_encoder.load", "text_encoder.convert"]
    progress = [event.data for event in events if event.name == "run_progress"]
    assert [progress[0]["done"], progress[0]["total"], progress[0]["unknown_nodes"]] == [3, 5, 0]
    assert progress[0]["seconds_left"] >= progress[-1]["seconds_left"]
    begun = {event.data["node"]: event.data for event in events if event.name == "node_started"}
    assert begun["text_encoder.label"]["expected_seconds"] >= 0


def test_convert_shows_the_plan_of_what_it_would_do(project, cli):
    result = cli("convert", "checkpoint", "-t", "dml", "-o", "models/new", "--dry-run", "--workers", "1")
    assert result.status == 0
    assert "target: directml\n" in result.out
    assert "new: 2" in result.out.splitlines()[-1]
    assert not Path("models/new").exists()


def test_convert_tells_an_error_once_and_a_result_with_the_next_step(project, cli, monkeypatch):
    from olivelike.engine.execute.events import Event

    def fail(place, options, listener, report):
        assert options.fail_fast
        node = {"node": "unet.load", "error": "no such tensor", "log": "x"}
        listener(Event("run_started", {"workflow": "new", "run_id": "1", "nodes": 1, "node_ids": ["unet.load"]}))
        listener(Event("node_failed", node))
        raise PassError("unet.load failed: no such tensor\n  log: x")

    words = ("convert", "checkpoint", "-t", "cpu", "-o", "models/a b")
    with monkeypatch.context() as patch:
        patch.setattr("olivelike.engine.run.run", fail)
        result = cli(*words)
    assert (result.status, (result.out + result.err).count("no such tensor")) == (4, 1)
    assert "1 of 1  unet.load  failed\n" in result.out

    def succeed(place, options, listener, report):
        assert not options.fail_fast
        return RunResult("run", "ok", 1, 1, 0, 0.1, 0, ())

    monkeypatch.setattr("olivelike.engine.run.run", succeed)
    monkeypatch.setattr("olivelike.runtime.pipeline.pipeline_folder.open_folder", lambda folder: folder)
    last = cli(*words, "--keep-going").out.splitlines()[-1]
    assert last == """next: olivelike generate 'models/a b' "a red circle\""""
    last = cli(*words, "--keep-going", "--target", "trt").out.splitlines()[-1]
    assert last.startswith("next, with tensorrt (onnxruntime-gpu, and TensorRT): olivelike generate ")
