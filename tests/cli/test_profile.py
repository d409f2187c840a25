from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

FOLDER = "models/little"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_every_node_is_placed_and_timed_and_no_file_is_left(project, cli, temporary):
    result = cli("profile", FOLDER, "--threads", "1", "--runs", "2", "--json")
    found = json.loads(result.out)
    (network,) = found["networks"]
    assert (network["name"], network["inputs"]) == ("text_encoder", {"input_ids": "1x77"})
    counted = sum(operator["nodes"] for operator in network["operators"])
    assert network["providers"] == {"CPU": counted}
    assert counted > 20
    assert sum(operator["share"] for operator in network["operators"]) == pytest.approx(1)
    parts = [*(operator["milliseconds"] for operator in network["operators"]), network["between_nodes"]]
    assert sum(parts) == pytest.approx(network["milliseconds"])
    assert (network["runs"], found["runs"]) == (2, 2)
    assert not list(temporary.iterdir())
    assert not list(Path().glob("*.json"))


def test_the_table_shows_the_slowest_operators_and_the_share_of_the_rest(project, cli):
    lines = cli("profile", f"{FOLDER}/text_encoder/model.onnx", "--threads", "1", "--top", "2").out.splitlines()
    assert lines[2].startswith("text_encoder: ")
    assert lines[2].split("nodes on")[1].startswith(" CPU ")
    assert lines[4].split() == ["operator", "provider", "nodes", "ms", "share"]
    assert lines[7].strip().endswith("%")
    assert " others: " in lines[7]


def test_a_profile_is_added_to_the_report_of_the_run_that_wrote_the_folder(project, cli):
    (record,) = Path("cache/runs").glob("*.json")
    content = json.loads(record.read_text())
    # The project was copied from where the run wrote.
    link = Path(content["outputs"][0])
    result = cli("profile", link, "--threads", "1", "--runs", "1", "--report")
    path = Path(result.out.splitlines()[-1].removeprefix("report: "))
    assert path == project / "cache" / "logs" / record.stem / "report.html"
    assert "Nodes by execution provider" in path.read_text(encoding="utf-8")
    assert cli("report").status == 0
    assert "Nodes by execution provider" in path.read_text(encoding="utf-8")


def test_a_folder_that_no_run_wrote_has_no_report_to_add_to(project, cli, monkeypatch):
    monkeypatch.setattr("olivelike.measure.profiling.profile_folder", None)  # It is told before anything is measured.
    result = cli("profile", FOLDER, "--threads", "1", "--runs", "1", "--report")
    assert result.status == 2
    assert f"no run that wrote {FOLDER}" in result.err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("absent",), 3, "no such model or folder"),
        (("cache",), 3, "name a folder that `olivelike run` wrote"),
        ((FOLDER, "--provider", "openvino"), 2, "without it"),
        ((FOLDER, "--provider", "cpuu"), 2, "cpu"),
        ((FOLDER, "--runs", "0"), 2, "--runs"),
        ((FOLDER, "--batch-size", "1000000000"), 2, "--batch-size"),
        ((FOLDER, "--dimension", "text_batch=1000000000000"), 3, "no memory for its inputs"),
        ((FOLDER, "--dimension", "text_sequenc=77"), 2, "did you mean 'text_sequence'?"),
        ((FOLDER, "--dimension", "text_sequence=90"), 3, "text_encoder/model.onnx: cpu failed with input_ids 1x90"),
    ],
)
def test_what_can_not_be_profiled_says_why(project, cli, temporary, arguments, status, said):
    result = cli("profile", *arguments)
    assert result.status == status
    assert said in result.err
    assert not list(temporary.iterdir())


def test_a_damaged_network_is_named(project, cli):
    Path(FOLDER, "text_encoder", "model.onnx").write_bytes(b"no model")
    result = cli("profile", FOLDER)
    assert result.status == 3
    assert "text_encoder/model.onnx" in result.err
