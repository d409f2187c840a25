from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from olivelike.store import Store

LITTLE = "workflows/little.yaml"


def run_id() -> str:
    (record,) = Path("cache/runs").glob("*.json")
    return record.stem


def report_path() -> Path:
    return Path.cwd() / "cache" / "logs" / run_id() / "report.html"


def test_a_run_says_where_its_report_is(project, cli):
    shutil.rmtree("models")
    result = cli("run", LITTLE)
    said = re.search(r"^report: (cache/logs/.+/report\.html)$", result.out, re.MULTILINE)
    assert said is not None
    text = Path(said[1]).read_text(encoding="utf-8")
    assert "text_encoder.materialize" in text
    assert "weights.pb" in text
    assert "model.safetensors" in text


def test_a_record_whose_workflow_is_no_text_is_refused_and_no_bug(project, cli):
    store = Store.open(Path("cache"))
    record = {key: value for key, value in next(iter(store.runs())).items() if key not in {"kind", "seal"}}
    store.put_run({**record, "workflow": {"a": []}})
    refused = cli("report", record["run_id"])
    assert refused.status == 3
    assert f"the record of run {record['run_id']}: workflow: expected a text, found an object" in refused.err


def test_a_run_says_it_to_programs_too(project, cli):
    shutil.rmtree("models")
    *_, last = map(json.loads, cli("run", LITTLE, "--json").out.splitlines())
    assert Path(last["report"]).is_file()


def test_a_failed_run_has_a_report_with_its_error(project, cli):
    result = cli("run", LITTLE, "--set", "components.text_encoder=[convert, refuse]")
    assert result.status == 4
    said = re.search(r"^report: (.+)$", result.out, re.MULTILINE)
    assert "the graph is not to its liking" in Path(said[1]).read_text(encoding="utf-8")


def test_a_report_that_can_not_be_written_is_a_warning(project, cli, monkeypatch):
    shutil.rmtree("models")
    Path("cache/logs/known/report.html/taken").mkdir(parents=True)
    monkeypatch.setattr("olivelike.engine.run.new_run_id", lambda: "known")
    result = cli("run", LITTLE)
    assert result.status == 0
    assert "warning: the report was not written" in result.err
    assert "report:" not in result.out
    assert Path("models/little/model_index.json").is_file()


def test_report_writes_that_of_the_last_run_again(project, cli):
    report_path().unlink()
    assert cli("report").out == f"{report_path()}\n"
    assert report_path().is_file()
    assert json.loads(cli("report", "--json").out) == {"run_id": run_id(), "report": str(report_path())}


@pytest.mark.parametrize("name", ["little", "whole id", "beginning"])
def test_a_run_is_found_by_workflow_id_or_the_beginning_of_its_id(project, cli, name):
    wanted = {"whole id": run_id(), "beginning": run_id()[:12]}.get(name, name)
    assert cli("report", wanted).out == f"{report_path()}\n"


def test_an_unknown_run_is_answered_with_the_nearest(project, cli):
    wanted = run_id()[:-1] + "x"
    result = cli("report", wanted)
    assert result.status == 2
    assert f"no run {wanted!r}" in result.err
    assert run_id() in result.err
    assert "workflows and latest runs: little, " in cli("report", "9").err


def test_a_beginning_of_several_runs_is_refused_with_their_ids(project, cli):
    assert cli("run", LITTLE, "--only", "text_encoder", "--output", "models/second").status == 0
    result = cli("report", "2")
    assert result.status == 2
    assert f"2 runs begin with '2': {sorted(p.stem for p in Path('cache/runs').iterdir())[1]}" in result.err


def test_a_report_goes_to_a_file_and_opens_in_the_browser(project, cli, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert cli("report", "--output", "mine.html", "--open").status == 0
    assert opened == [(project / "mine.html").as_uri()]
    assert (project / "mine.html").read_bytes() == report_path().read_bytes()


@pytest.mark.parametrize("place", ["absent/mine.html", ".", "models"])
def test_a_file_that_can_not_be_written_is_named(project, cli, place):
    result = cli("report", "--output", place)
    assert result.status == 2
    assert f"{place}: is a folder, or lies in none; name a file" in result.err


def test_a_folder_without_store_or_a_store_without_runs_is_said_so(empty_folder, cli):
    assert cli("report").status == 3
    Path("cache").mkdir()
    result = cli("report")
    assert result.status == 2
    assert "no run is recorded" in result.err
