from __future__ import annotations

import pytest

from olivelike.extras.bench import bench_tables as bench
from olivelike.extras.bench.bench_commands import show_event
from olivelike.extras.bench.engines import usual_engines
from olivelike.measure.contest.contest import Event
from olivelike.measure.result_rows import EngineRow
from olivelike.runtime.sessions.providers import find_provider

MEASURED = {
    "engine": "onnxruntime", "provider": "CPUExecutionProvider", "dtype": "float32", "batch_size": 1,
    "median_latency": 0.109, "speed": 14.93, "spread_percent": 68.0, "p95_latency": 0.182, "steps_per_second": 30.2,
    "text_encoder_ms": 2.9, "step_ms": 33.0, "vae_decoder_ms": 12.2, "safety_checker_ms": 3.4, "load_seconds": 3.3,
    "peak_resident_MB": 322.8, "peak_device_MB": None, "status": "ok", "speed_against": "torch", "note": "",
    "folder": "demo", "width": 64, "height": 64, "steps": 3,
}  # fmt: skip


class Report:
    rows = (EngineRow(**MEASURED), EngineRow(**{**MEASURED, "engine": "torch-compile", "speed": 1.0}))
    skipped = failed = ()


@pytest.mark.parametrize(("columns", "left_out"), [(None, 0), (200, 0), (100, 4), (80, 7)])
def test_a_terminal_gets_the_columns_of_the_table_that_fit_and_a_pipe_all(monkeypatch, columns, left_out):
    monkeypatch.setattr(bench, "terminal_width", lambda: columns)
    lines = list(bench.table_lines(Report(), ()))
    header, (first, second) = lines[1], lines[2:4]
    assert all(title in header for title in ("engine", "median s", "speed", "spread", "memory"))
    assert ("text ms" in header) == (left_out == 0)
    assert first.split()[0] == "onnxruntime"
    assert second.split()[0] == "torch-compile"
    assert max(map(len, lines[:4])) <= (columns or 200)
    said = "".join(lines[4:])
    assert (len(said.partition("): ")[2].split(", ")) if said else 0) == left_out


@pytest.mark.parametrize(
    ("provider", "engines"),
    [
        ("cpu", ("onnxruntime", "openvino", "torch", "torch-compile")),
        ("openvino", ("openvino", "onnxruntime", "torch", "torch-compile")),
        ("tensorrt", ("tensorrt", "onnxruntime", "openvino", "torch", "torch-compile", "xformers")),
        ("cuda", ("onnxruntime", "openvino", "tensorrt", "torch", "torch-compile", "xformers")),
    ],
)
def test_the_engine_that_fits_a_folder_is_first_and_none_is_for_another_device(provider, engines):
    assert usual_engines(find_provider(provider)) == engines


def test_each_run_brings_a_median_as_it_comes(capsys):
    for event in (
        Event("warmed_up", "torch", 1, seconds=0.0123), Event("warmed_up", "openvino", 1),
        Event("measured", "torch", 1, "the median of 2", 0.0119),
    ):  # fmt: skip
        show_event(event)
    assert capsys.readouterr().err.splitlines() == [
        "torch: warmed up, 0.0123 s for the last batch", "openvino: warmed up",
        "torch: 0.0119 s a batch, the median of 2",
    ]  # fmt: skip
