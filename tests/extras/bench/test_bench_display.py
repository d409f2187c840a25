from __future__ import annotations

import pytest

from olivelike.extras.bench import bench_tables as bench
from olivelike.measure.result_rows import EngineRow

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
