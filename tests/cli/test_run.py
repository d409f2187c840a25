from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest

HEAVY = {"torch", "onnx", "onnx_ir", "onnxruntime", "diffusers", "transformers", "numpy", "rich", "psutil"}
RESULT_FIELDS = {"shelved",
    "event", "run_id", "status", "nodes", "hits", "executed", "seconds", "peak_memory_bytes", "output", "report",
    "error",
}  # fmt: skip
LITTLE = "workflows/little.yaml"


def events(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def chain(*steps: str) -> str:
    return f"components.text_encoder=[{', '.join(steps)}]"


def test_a_run_with_nothing_to_do_says_so_in_one_line(project, cli):
    result = cli("run", LITTLE)
    assert result.status == 0
    assert re.fullmatch(
        r"little: nothing to do, models/little is up to date \((\d+) of \1 nodes stored, \d+\.\d s\)\n", result.out
    )
    assert result.err == ""


def test_a_run_with_nothing_to_do_imports_no_heavy_library(project, start):
    process = start("run", LITTLE, python=("-X", "importtime"))
    out, err = process.communicate()
    assert "nothing to do" in out
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in err.splitlines()}
    assert "olivelike" in imported
    assert not imported & HEAVY


def test_each_line_of_json_output_is_an_object_and_the_last_is_run_finished(project, cli):
    result = cli("run", LITTLE, "--json")
    *others, last = events(result.out)
    assert last.keys() == RESULT_FIELDS
    assert last["event"] == "run_finished"
    assert (last["status"], last["executed"], last["error"]) == ("ok", 0, None)
    assert last["hits"] == last["nodes"] == sum(event["event"] == "node_hit" for event in others)
    assert last["output"] == str(project / "models" / "little")


def test_a_changed_option_runs_its_node_and_writes_the_output(project, cli):
    result = cli("run", LITTLE, "--set", chain("convert", "{label: {text: other}}"))
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0] == "little: 2 of 5 nodes to run, 3 known; less than 10 s"
    assert re.fullmatch(r"4 of 5  text_encoder\.label +\d+\.\d s  worker +\d+\.\d [MG]B", lines[1])
    assert lines[-1].startswith("little: 2 of ")
    assert lines[-1].endswith("; wrote models/little")
    assert "convert" not in result.out


def test_another_pipeline_in_the_output_stops_run_and_convert_unless_it_may_be_replaced(project, cli):
    Path("checkpoint").rename("painter")
    run = ("run", LITTLE, "--set", "source=./painter")
    for command in (run, ("convert", "painter", "-t", "cpu", "-o", "models/little")):
        refused = cli(*command)
        assert refused.status == 2
        assert "models/little holds another pipeline, made from" in refused.err
        assert "this run would replace it with one from" in refused.err
        assert "--overwrite" in refused.err
    refused = cli(*run, "--json")
    assert "holds another pipeline" in events(refused.out)[-1]["error"]
    assert cli(*run, "--overwrite").status == 0
    assert json.loads(Path("models/little/olivelike.json").read_bytes())["source"]["name"] == "painter"
    assert "nothing to do" in cli(*run).out


def test_a_deleted_output_is_written_again_without_running_a_pass(project, cli):
    shutil.rmtree("models")
    result = cli("run", LITTLE)
    assert result.status == 0
    assert "text_encoder.materialize" in result.out
    assert "text_encoder.convert" not in result.out
    assert Path("models/little/text_encoder/model.onnx").is_file()


def test_until_a_pass_writes_no_output(project, cli):
    shutil.rmtree("models")
    result = cli("run", LITTLE, "--until", "convert")
    assert result.out.startswith("little: nothing to do (2 of 2 nodes stored")
    assert not Path("models").exists()


def test_output_and_cache_dir_are_obeyed(project, cli):
    Path("cache").rename("elsewhere")
    result = cli("run", LITTLE, "--output", "models/second", "--cache-dir", "elsewhere")
    assert result.status == 0
    assert Path("models/second/text_encoder/model.onnx").is_file()
    assert not Path("cache").exists()


def test_a_failing_pass_gives_its_message_its_log_and_status_4(project, cli):
    result = cli("run", LITTLE, "--set", chain("convert", "refuse"))
    assert result.status == 4
    assert "failed: the graph is not to its liking" in result.out
    assert result.err.startswith("error: text_encoder.refuse failed: the graph is not to its liking")
    log = Path(re.search(r"log: (.+)", result.err)[1])
    assert "PassError" in log.read_text()
    assert "Traceback" not in result.out + result.err


def test_json_of_a_failed_run_ends_with_run_finished_and_the_error(project, cli):
    result = cli("run", LITTLE, "--json", "--set", chain("convert", "refuse"))
    last = events(result.out)[-1]
    assert last["event"] == "run_finished"
    assert last["status"] == "failed"
    assert "not to its liking" in last["error"]
    assert result.err.startswith("error: ")


def test_json_of_a_run_that_can_not_begin_is_run_finished_alone(project, cli):
    result = cli("run", LITTLE, "--json", "--set", "target=abacus")
    (only,) = events(result.out)
    assert only.keys() == RESULT_FIELDS
    assert (only["status"], only["nodes"], only["output"]) == ("failed", 0, None)
    assert result.status == 2


def test_json_ends_with_run_finished_after_a_bug_too(project, cli, monkeypatch, tmp_path):
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("olivelike.engine.run.run", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = cli("run", LITTLE, "--json")
    assert result.status == 1
    assert events(result.out)[-1]["error"] == "a bug"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "unet"],
        ["--until", "fly"],
        ["--memory-limit", "much"],
        ["--workers", "0"],
        ["--set", "components.text_encoder.7=convert"],
        ["--no-such-option"],
    ],
)
def test_a_wrong_option_value_ends_with_status_2_and_changes_nothing(project, cli, arguments):
    result = cli("run", LITTLE, *arguments)
    assert result.status == 2
    assert "rror: " in result.err
    assert result.out == ""


def test_an_unknown_workflow_names_the_nearest_shipped_one(empty_folder, cli):
    result = cli("run", "sd15_directm")
    assert result.status == 2
    assert "did you mean 'sd15_directml'?" in result.err


def test_a_missing_source_ends_with_status_3(project, cli):
    result = cli("run", LITTLE, "--set", "source=./nowhere")
    assert result.status == 3
    assert "nowhere" in result.err


def test_dry_run_shows_the_plan_and_runs_nothing(project, cli):
    shutil.rmtree("models")
    dry = cli("run", LITTLE, "--dry-run")
    assert dry.out == cli("plan", LITTLE).out
    assert not Path("models").exists()


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_stops_the_children_and_leaves_no_temporary_file(project, start, number):
    process = start("run", LITTLE, "--json", "--set", chain("convert", "slow"))
    seen = wait_for_progress(process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    last = events(seen + out)[-1]
    assert (last["event"], last["status"]) == ("run_finished", "interrupted")
    assert err == "error: interrupted; what was finished is stored, run again to continue\n"
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    leftovers = [path for path in Path("cache/tmp").rglob("*") if path.is_file()]
    assert not leftovers
    assert not list(Path("cache/roots/runs").iterdir())


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_run_whose_reader_leaves_stops_quietly(project, start):
    process = start("run", LITTLE, "--json", "--set", chain("convert", "slow"))
    wait_for_progress(process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.stdout.close()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()  # The failure is the next thing to be written.
    assert process.wait(60) == 141
    assert process.stderr.read() == ""
    process.stdout = None


def wait_for_progress(process) -> str:
    """Read lines until the slow pass has begun; return them."""
    seen = ""
    while '"node_progress"' not in seen:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        seen += line
    return seen
