"""`olivelike bench` as a whole: one run on the small pipeline."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

from olivelike.cli.app import run_command_line
from olivelike.data import demo_folder
from olivelike.measure.contest.contest import ContestInterrupted, Measured
from olivelike.measure.contest.engine import Timing
from olivelike.measure.result_rows import ENGINE_FIELDS
from tests.fixtures.bench_samples import STEPS

SEEDS_COLUMNS = [
    "engine", "version", "provider", "disable_safety_checker", "height", "width", "steps", "batch_size",
    "batch_count", "num_prompts", "average_latency", "median_latency", "first_run_memory_MB",
    "second_run_memory_MB",
]  # fmt: skip


def test_the_first_columns_are_those_of_the_script_that_onnx_runtime_comes_with(command_run):
    with command_run.csv.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header[:14] == SEEDS_COLUMNS
    assert tuple(header) == ENGINE_FIELDS
    assert [row[0] for row in rows] == ["onnxruntime", command_run.other]
    assert rows[0][3:10] == ["FALSE", "64", "64", str(STEPS), "1", "2", "2"]


def test_each_engine_has_a_filled_row(command_run):
    numbers = [name for name in ENGINE_FIELDS if name.endswith(("latency", "_ms", "_MB", "per_second", "_seconds"))]
    for row in command_run.rows.values():
        assert row["status"] == "ok"
        empty = {name for name in numbers if not row[name]}
        assert empty == {"peak_device_MB"}
        assert row["min_latency"] <= row["median_latency"] <= row["p90_latency"] <= row["p99_latency"]
        assert row["version"]
        assert row["dtype"] == "float32" or row["engine"] == "openvino"  # Whose processor chooses.


def test_each_row_has_its_speed_against_another_engine_and_how_quiet_the_machine_was(command_run):
    rows = command_run.rows
    base, other = command_run.pair
    ratio = rows[base]["median_latency"] / rows[other]["median_latency"]
    assert rows[other]["speed"] == pytest.approx(ratio, rel=1e-3)
    assert (rows[base]["speed"], rows[base]["speed_against"]) == (1.0, base)
    assert f"{rows[other]['speed']:.2f}x" in command_run.out
    assert f"speed against {base}" in command_run.out
    for row in rows.values():
        assert row["spread_percent"] >= 0
        assert row["outliers"] in {0, 1, 2, 3}
        assert row["load_average"] > 0
        assert 0 <= row["other_cpu_percent"] <= 100
        said = f"note: {row['engine']}, batch size 1: {row['note']}"
        assert (said in command_run.out) == (row["note"] is not None)


def test_the_report_of_the_run_that_wrote_the_folder_has_the_table(command_run):
    base, _ = command_run.pair
    fastest = min(command_run.rows.values(), key=lambda row: row["median_latency"])
    median = f"{fastest['median_latency']:.3g} s"
    tile = f"{median}</strong>" if fastest["engine"] == base else f"x {base}</strong><small>{median}"
    assert tile in command_run.page
    assert f"speed is against {base}" in command_run.page
    assert "known/report.html" in command_run.out


def test_stages_add_up_to_no_more_than_a_batch(command_run):
    rows = command_run.rows
    for row in (rows[engine] for engine in ("onnxruntime", "torch") if engine in rows):
        # PNDM evaluates the UNet once more than it is asked to.
        stages = row["text_encoder_ms"] + row["step_ms"] * (STEPS + 1) + row["vae_decoder_ms"]
        assert 0.3 < stages / 1000 / row["median_latency"] < 1.5
        assert row["safety_checker_ms"] < row["median_latency"] * 1000


def test_the_first_step_comes_behind_opening(command_run):
    for row in command_run.rows.values():
        assert row["load_seconds"] < row["first_step_seconds"] < row["load_seconds"] + 60


def test_memory_is_that_of_the_engines_own_process(command_run):
    for row in command_run.rows.values():
        assert 50 < row["rest_resident_MB"] <= row["peak_resident_MB"] * 1.01
        assert 50 < row["first_run_memory_MB"] <= row["peak_resident_MB"] <= row["peak_tree_MB"]
        assert 50 < row["second_run_memory_MB"] <= row["peak_resident_MB"] * 1.01


def test_an_engine_that_is_absent_is_left_out_with_the_reason(command_run):
    (skipped,) = command_run.report["skipped"]
    assert skipped["engine"] == "tensorrt"
    assert "no NVIDIA GPU" in skipped["reason"] or "not installed" in skipped["reason"]
    assert "left out: tensorrt" in command_run.out


def test_slower_than_the_baseline_is_status_5_and_everything_is_written_before(command_run):
    assert command_run.status == 5
    assert "slower than the baseline" in command_run.err
    assert "onnxruntime, batch size 1" in command_run.err
    assert len(command_run.csv.read_text().splitlines()) == 3


def test_the_table_has_a_line_for_each_engine(command_run):
    lines = [
        line for line in command_run.out.splitlines() if line.startswith(("onnxruntime ", f"{command_run.other} "))
    ]
    assert len(lines) == 2
    assert "CPU " in lines[0]


def test_what_was_measured_before_an_interruption_is_shown_and_kept(small_pipeline, capsys, tmp_path, monkeypatch):
    """All but the processes is real: `onnxruntime` is stopped within its runs, `openvino` before its first."""
    timing = Timing(0.5, 2)
    measured = {
        "onnxruntime": Measured({"provider": "CPUExecutionProvider"}, 1.0, [timing], [timing] * 3),
        "openvino": Measured(load_seconds=2.0, warmup=[Timing(3.25)]),
        "torch": Measured(),
    }

    def contest(jobs, warmup, turns, limit, listen, look):
        raise ContestInterrupted({name: measured[name] for name in jobs})

    monkeypatch.setattr("olivelike.extras.bench.whole_pictures.contest", contest)
    saved, table = tmp_path / "report.json", tmp_path / "rows.csv"
    arguments = ["bench", str(small_pipeline), "--json-file", str(saved), "--csv", str(table), "--size", "64x64"]
    for engine in measured:
        arguments += ["--engine", engine]
    assert run_command_line(arguments) == 130
    told = capsys.readouterr()
    assert "measuring onnxruntime, openvino, torch: each is opened" in told.err
    assert "interrupted; rows are of what was measured until then" in told.err
    assert "note: onnxruntime, batch size 1: stopped after 3 of 5 runs" in told.out
    assert "interrupted: openvino, batch size 1: before its first measured run; it was open, and a batch" in told.out
    assert "to warm up took 3.25 s" in told.out
    assert "interrupted: torch, batch size 1: before its first measured run; it was being opened" in told.out
    rows = {row["engine"]: row for row in json.loads(saved.read_bytes())["rows"]}
    assert rows["onnxruntime"]["median_latency"] == 0.5
    assert (rows["openvino"]["status"], rows["openvino"]["median_latency"]) == ("interrupted", None)
    assert len(table.read_text(encoding="utf-8").splitlines()) == 4


def test_without_any_engine_the_status_is_3(small_pipeline, capsys):
    status = run_command_line(["bench", str(small_pipeline), "--engine", "xformers", "--json"])
    told = capsys.readouterr()
    assert status == 3
    assert "no engine could be measured: xformers: xformers is not installed" in told.err
    assert json.loads(told.out)["rows"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch-size", "0"], "batch size: 0 is not between 1 and 256"),
        (["--batch-size", "100000"], "batch size: 100000 is not between 1 and 256"),
        (["--steps", "-1"], "steps: -1"),
        (["--batch-count", "0"], "batch count: 0"),
        (["--num-prompts", "0"], "number of prompts: 0"),
        (["--warmup-runs", "-1"], "warm-up runs: -1 is below 0"),
        (["--timeout", "0"], "timeout: 0 s is not between 0 and 604800"),
        (["--timeout", "inf"], "timeout: inf s is not between 0 and 604800"),
        (["--height", "65"], "the nearest is 64x64"),
        (["--size", "65x64"], "the nearest is 64x64"),
        (["--size", "64"], "--size '64' is no size"),
        (["--size", "64x64", "--width", "64"], "--size says both already; leave out --height and --width"),
        (["--engine", "torch-compiled"], "did you mean 'torch-compile'?"),
        (["--provider", "cudaa"], "did you mean 'cuda'?"),
        (["--torch-dtype", "half"], "unknown precision 'half'"),
        (["--against", "gone.json"], "gone.json: there is no such baseline"),
        (["--threshold", "-5"], "--threshold: -5 is below 0"),
        (["--csv", "gone/rows.csv"], "gone/rows.csv: is a folder, or lies in none"),
        (["--engine", "torch", "--checkpoint", "no such"], "--checkpoint: no such is neither"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_can_not_be_had_is_refused_before_anything_is_opened(
    arguments, said, small_pipeline, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["bench", str(small_pipeline), *arguments]) == 2
    assert said in capsys.readouterr().err


def baseline_of(path, **changes):
    """Write a baseline for `onnxruntime` on the small pipeline."""
    row = {
        "engine": "onnxruntime", "height": 64, "width": 64, "steps": STEPS, "batch_size": 1,
        "disable_safety_checker": False, "median_latency": 1.0, **changes,
    }  # fmt: skip
    path.write_text(json.dumps({"kind": "bench/1", "rows": [row]}))
    return path


@pytest.mark.parametrize(
    "changes", [{"steps": STEPS + 1}, {"batch_size": 2}, {"engine": "torch"}, {"height": 128}, {"median_latency": None}]
)
def test_a_baseline_with_nothing_in_common_is_refused_before_anything_is_opened(
    changes, small_pipeline, capsys, tmp_path
):
    against = baseline_of(tmp_path / "baseline.json", **changes)
    asked = ["--engine", "onnxruntime", "--steps", str(STEPS), "--against", str(against)]
    assert run_command_line(["bench", str(small_pipeline), *asked]) == 2
    told = capsys.readouterr()
    assert "the baseline has no row of the same engine" in told.err
    assert "open after" not in told.err


def test_an_engine_that_fails_is_shown_and_told_before_what_a_baseline_lacks(small_pipeline, capsys, tmp_path):
    against = baseline_of(tmp_path / "baseline.json")
    asked = ["--engine", "onnxruntime", "--steps", str(STEPS), "--against", str(against), "--timeout", "0.05"]
    assert run_command_line(["bench", str(small_pipeline), *asked, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in found["rows"]] == ["timed out"]
    assert found["comparisons"] == []


def test_the_table_comes_before_a_file_that_can_not_be_written(small_pipeline, capsys, tmp_path, monkeypatch):
    saved = tmp_path / "gone" / "report.json"
    monkeypatch.setattr("olivelike.extras.bench.bench_commands.require_writable", lambda _: None)
    asked = ["--engine", "xformers", "--json-file", str(saved)]
    assert run_command_line(["bench", str(small_pipeline), *asked]) == 2
    told = capsys.readouterr()
    assert "left out: xformers" in told.out
    assert "can't be written" in told.err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_the_demo_model_has_a_filled_row_for_each_engine_and_batch_size(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLIVELIKE_CACHE_DIR", "cache")
    assert run_command_line(["run", "demo"]) == 0
    capsys.readouterr()
    asked = ["--checkpoint", str(demo_folder()), "--no-interleave", "--steps", "2", "--batch-count", "1"]
    for engine in ("onnxruntime", "torch", "torch-compile"):
        asked += ["--engine", engine]
    assert run_command_line(["bench", "models/demo", *asked, "--batch-size", "1", "--batch-size", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["batch_size"], row["engine"], row["provider"]) for row in rows] == [
        (batch_size, *engine)
        for batch_size in (1, 2)
        for engine in (
            ("onnxruntime", "CPUExecutionProvider"), ("torch", "default"), ("torch-compile", "compile"),
        )
    ]  # fmt: skip
    for row in rows:
        assert row["status"] == "ok"
        assert {name for name in SEEDS_COLUMNS if row[name] is None} == set()


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path, capsys):
    assert run_command_line(["bench", str(tmp_path)]) == 3
    assert "is no pipeline" in capsys.readouterr().err
