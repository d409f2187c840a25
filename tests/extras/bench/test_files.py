"""CSV files that rows are added to, and baselines."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest

from olivelike.errors import UsageError
from olivelike.extras.bench.bench_report import BenchReport, append_rows, check_csv, compare, read_report
from olivelike.extras.bench.bench_settings import BenchSettings, check
from olivelike.extras.bench.row import make_row, percentile, with_speeds
from olivelike.extras.bench.torch_engine import TorchJob
from olivelike.measure.contest.contest import Measured
from olivelike.measure.contest.engine import decode_job, encode_job
from olivelike.measure.result_rows import ENGINE_FIELDS, EngineRow, Machine
from tests.fixtures.bench_samples import ONE_THREAD


def row(**values):
    return EngineRow(**{"engine": "torch", "batch_size": 1, **values})


def test_rows_go_below_those_that_are_there(tmp_path):
    path = tmp_path / "rows.csv"
    append_rows(path, [row(median_latency=0.5), row(disable_safety_checker=True)])
    append_rows(path, [row(error='it said: "no",\nand died')])
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [line["median_latency"] for line in found] == ["0.5", "", ""]
    assert found[1]["disable_safety_checker"] == "TRUE"
    assert found[2]["error"] == 'it said: "no", and died'
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.csv"]


def test_a_last_line_without_an_end_is_kept_apart(tmp_path):
    path = tmp_path / "rows.csv"
    append_rows(path, [row(median_latency=1.0)])
    path.write_text(path.read_text().rstrip("\n"))
    append_rows(path, [row(median_latency=2.0)])
    with path.open(newline="") as file:
        assert [line["median_latency"] for line in csv.DictReader(file)] == ["1.0", "2.0"]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("engine,version,latency\n1,2,3\n", "its column 3 is 'latency', and not 'provider'"),
        (",".join(ENGINE_FIELDS[:14]) + "\n", f"it has 14 of them, and these are {len(ENGINE_FIELDS)}"),
        ("some notes of mine", "its column 1 is 'some notes of mine'"),
    ],
)
def test_a_file_with_other_columns_is_refused_and_left_as_it_is(tmp_path, header, said):
    path = tmp_path / "rows.csv"
    path.write_text(header)
    for refused in (lambda: check_csv(path), lambda: append_rows(path, [row()])):
        with pytest.raises(UsageError, match="has other columns") as caught:
            refused()
        assert said in str(caught.value)
    assert path.read_text() == header


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x81" * 10, b"x" * 200_000], ids=["bytes", "one long field"])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="can't be read as CSV"):
        check_csv(path)


def test_an_empty_file_takes_rows_and_one_of_blank_lines_does_not(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\n\n")
    with pytest.raises(UsageError, match="has other columns"):
        append_rows(path, [row()])
    assert path.read_text() == "\n\n"
    path.write_text("")
    append_rows(path, [row()])
    append_rows(path, [row()])
    assert len(path.read_text().splitlines()) == 3


def test_a_file_in_a_folder_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    append_rows(path, [row()])
    monkeypatch.setattr("os.access", lambda place, _: place != tmp_path)
    with pytest.raises(UsageError, match="may not be written, and a lock lies beside rows.csv"):
        check_csv(path)


APPENDS = """
import sys
from pathlib import Path
from olivelike.extras.bench.bench_report import append_rows
from olivelike.measure.result_rows import ENGINE_FIELDS, EngineRow
for number in range(20):
    append_rows(Path(sys.argv[1]), [EngineRow(**dict.fromkeys(ENGINE_FIELDS, f"{sys.argv[2]}-{number}"))] * 3)
"""


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "rows.csv"
    writers = [subprocess.Popen([sys.executable, "-c", APPENDS, str(path), str(name)]) for name in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    with path.open(newline="") as file:
        found = list(csv.reader(file))
    assert tuple(found[0]) == ENGINE_FIELDS
    assert len(found) == 1 + 3 * 20 * 3
    assert all(len(set(line)) == 1 for line in found[1:])
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.csv"]


def test_medians_are_compared_where_the_same_was_measured():
    before = BenchReport((row(median_latency=1.0), row(batch_size=4, median_latency=3.0)))
    now = BenchReport(
        (row(median_latency=1.04), row(batch_size=4, median_latency=3.3), row(batch_size=8, median_latency=9.0))
    )
    found = compare(now, before, 5.0)
    assert [(one.batch_size, one.slower) for one in found] == [(1, False), (4, True)]
    assert found[1].change == pytest.approx(10)
    assert str(found[1]) == "torch, batch size 4: 3 s, now 3.3 s (+10.0 %, slower than allowed: up to 5 %)"


def test_rows_of_other_things_or_without_a_median_are_not_compared():
    before = BenchReport((row(height=512, median_latency=1.0), row(median_latency=None)))
    assert compare(BenchReport((row(median_latency=1.0),)), before, 5.0) == ()


@pytest.mark.parametrize("skipped", [None, [{"x": 1}], 3])
def test_of_a_baseline_the_rows_count_alone(tmp_path, skipped):
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"kind": "bench/1", "rows": [row().to_json()], "skipped": skipped}))
    assert read_report(path) == BenchReport((row(),))


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"kind": "output/1"}',
        '{"kind": "bench/1", "rows": 3}',
        '{"kind": "bench/1", "rows": [3]}',
        '{"kind": "bench/1", "rows": [{"engine": []}]}',
    ],
)
def test_a_baseline_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="baseline.json: "):
        read_report(path)


def test_percentiles_are_values_that_were_measured():
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert percentile([], 50) is None


def test_a_row_of_what_failed_says_why_and_has_no_latency(small_pipeline):
    checked = check(BenchSettings(small_pipeline, sessions=ONE_THREAD))
    row = make_row("torch", 4, checked, Measured(status="died", message="was killed"), Machine())
    assert (row.status, row.error, row.batch_size) == ("died", "was killed", 4)
    assert row.median_latency is None
    assert row.first_run_memory_MB is None


def test_a_job_for_torch_comes_out_of_json_as_it_went_in(tmp_path):
    job = TorchJob("torch", tmp_path, ONE_THREAD, (64, 32), 20, safety=True, checkpoint="a/b", torch_dtype="float16")
    assert decode_job(encode_job(job)) == job


def timed(engine, latency, batch_size=1):
    return EngineRow(engine=engine, batch_size=batch_size, median_latency=latency)


def test_speeds_are_against_torch_at_the_same_batch_size():
    rows = with_speeds(
        [
            timed("onnxruntime", 0.5),
            timed("torch", 1.0),
            timed("openvino", None),
            timed("onnxruntime", 2.0, 4),
            timed("torch", 3.0, 4),
        ]
    )
    assert [one.speed for one in rows] == [2.0, 1.0, None, 1.5, 1.0]
    assert {one.speed_against for one in rows} == {"torch", None}


def test_without_torch_they_are_against_the_first_and_one_alone_has_none():
    first, second = with_speeds([timed("onnxruntime", 0.5), timed("openvino", 0.25)])
    assert (first.speed, second.speed, second.speed_against) == (1.0, 2.0, "onnxruntime")
    (alone,) = with_speeds([timed("onnxruntime", 0.5)])
    assert alone.speed is None
