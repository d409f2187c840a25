"""Every command takes a workflow with a matrix as `run` does, and names the same combinations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MATRIX = """\
name: fleet
source: ./checkpoint
target: cpu
plugins: [../plugins]
components:
  text_encoder: [convert, label]
matrix:
  words:
    one: {components: {text_encoder: [convert, {label: {text: one}}]}}
    two: {components: {text_encoder: [convert, {label: {text: two}}]}}
output: models/fleet
"""
FLEET = "workflows/fleet.yaml"


@pytest.fixture
def fleet(project: Path) -> Path:
    path = project / FLEET
    path.write_text(MATRIX, encoding="utf-8")
    return path


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_of_all_says_of_none_that_it_failed_and_ends_with_the_fleet(fleet, cli):
    done = cli("run", FLEET, "--json")
    assert done.status == 0
    events = lines(done.out)
    ended = [event for event in events if event["event"] == "run_finished"]
    assert {event["combination"]: event["status"] for event in ended} == {"one": "ok", "two": "ok"}
    assert all(Path(event["report"]).is_file() for event in ended)
    last = events[-1]
    assert (last["event"], last["status"], last["failed"], last["error"]) == ("fleet_finished", "ok", 0, None)
    told = cli("report", "fleet")
    assert told.status == 2
    assert "'fleet' has a `matrix`, and each combination a report of its own; name one: fleet@" in told.err
    assert cli("report", "fleet@two").status == 0
    assert "nothing to do" in cli("run", FLEET).out


def test_what_several_combinations_fail_of_is_told_once(fleet, cli):
    fleet.write_text(MATRIX.replace("convert, {label: {text: two}}", "convert, refuse"), encoding="utf-8")
    done = cli("run", FLEET, "--json")
    last = lines(done.out)[-1]
    assert (last["event"], last["status"], last["failed"]) == ("fleet_finished", "failed", 1)
    assert "not to its liking" in last["error"]
    assert done.status == 4
    fleet.write_text(MATRIX.replace("{label: {text:", "{labl: {text:"), encoding="utf-8")
    wrong = cli("run", FLEET, "--json")
    assert wrong.status == 2
    assert [(event["event"], event["status"]) for event in lines(wrong.out)] == [("fleet_finished", "failed")]


def test_the_table_names_a_report_that_the_command_finds(fleet, cli):
    out = cli("run", FLEET).out
    (line,) = (line for line in out.splitlines() if line.startswith("report of fleet@"))
    assert Path(line.partition(": ")[2].partition(";")[0]).is_file()
    assert "1 more, such as `olivelike report fleet@" in line


def test_validate_and_explain_take_all_combinations_or_one(fleet, cli):
    assert cli("validate", FLEET, "workflows/little.yaml").out.splitlines() == [
        f"{FLEET}: valid (2 combinations)",
        "workflows/little.yaml: valid (1 component, 2 steps)",
    ]
    (facts,) = json.loads(cli("validate", FLEET, "--json").out)
    assert facts["combinations"] == ["one", "two"]
    assert "(1 component, 2 steps)" not in cli("validate", FLEET).out
    assert cli("validate", FLEET, "--combination", "one").status == 0
    assert "did you mean 'two'?" in cli("validate", FLEET, "--combination", "twoo").err

    found = json.loads(cli("explain", FLEET, "--json").out)
    assert {(one["combination"], one["node"]) for one in found if ".label" in one["node"]} == {
        ("one", "text_encoder.label"),
        ("two", "text_encoder.label"),
    }
    out = cli("explain", FLEET, "text_encoder.label").out
    assert out.startswith("one:\ntext_encoder.label: runs")
    assert "\ntwo:\n" in out
    assert "did you mean 'text_encoder.label'" in cli("explain", FLEET, "text_encoder.labl").err
    assert "two:" not in cli("explain", FLEET, "--combination", "one").out


def test_a_mistake_of_one_combination_names_it(fleet, cli):
    fleet.write_text(MATRIX.replace("{label: {text: two}}", "{label: {txt: two}}"), encoding="utf-8")
    told = cli("validate", FLEET)
    assert told.status == 2
    assert "txt" in told.err
    assert "in the combination two" in told.err


@pytest.mark.parametrize("command", ["plan", "validate", "explain"])
def test_set_reaches_into_a_matrix_or_is_refused(fleet, cli, command):
    key = "matrix.words.two.components.text_encoder.1.label"
    assert cli(command, FLEET, "--set", f"{key}.text=other", "--combination", "two").status == 0
    assert "txt" in cli(command, FLEET, "--set", f"{key}.txt=other", "--combination", "two").err
    wrong = cli(command, FLEET, "--set", "matrix.nonsense.foo=1", "--combination", "two")
    assert wrong.status == 2
    assert "--set matrix.nonsense.foo=1: `foo` is a map of keys that it lays over the workflow, found 1" in wrong.err
    three = cli(command, FLEET, "--set", "matrix.words.three={}", "--combination", "three")
    assert three.status == 0, three.err


def test_set_of_a_matrix_changes_what_runs(fleet, cli):
    cli("run", FLEET, "--combination", "two")
    key = "matrix.words.two.components.text_encoder.1.label.text=other"
    (label,) = json.loads(
        cli("explain", FLEET, "text_encoder.label", "--combination", "two", "--set", key, "--json").out
    )
    assert label["changes"] == ["option text changed from two to other"]


def test_a_pin_is_of_each_combination(fleet, cli):
    empty = cli("cache", "pin", FLEET)
    assert empty.status == 0, empty.err  # All before `label` is stored already.
    assert "pinned 3 of 4 results as fleet@one" in empty.out
    assert "fleet@two: not stored, and so not kept: text_encoder.label; run the workflow" in empty.err
    cli("run", FLEET)
    pinned = json.loads(cli("cache", "pin", FLEET, "--json").out)
    assert [one["name"] for one in pinned] == ["fleet@one", "fleet@two"]
    assert all(one["missing"] == [] for one in pinned)
