"""One run of the command on the small pipeline, shared by several tests."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from olivelike.cli.app import run_command_line
from olivelike.store import Store
from tests.cli.conftest import _jobs_in_this_process, _no_store_of_the_user, cli, project, warm_project  # noqa: F401
from tests.fixtures.bench_samples import STEPS, write_small_pipeline


@dataclass
class CommandRun:
    """What a run of the command left."""

    other: str
    """The engine beside `onnxruntime`."""
    status: int
    out: str
    err: str
    csv: Path
    page: str
    """The report of the run that is said to have written the folder."""
    report: dict[str, Any]

    @property
    def pair(self) -> tuple[str, str]:
        """The engine that speeds are against, which is torch where that is measured, and the other one."""
        return ("torch", "onnxruntime") if self.other == "torch" else ("onnxruntime", self.other)

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["engine"]: row for row in self.report["rows"]}


@pytest.fixture(scope="session")
def small_pipeline(tmp_path_factory):
    """A folder whose pictures take next to no time; not to be changed."""
    return write_small_pipeline(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session", params=["openvino", pytest.param("torch", marks=pytest.mark.slow)])
def command_run(request, small_pipeline, tmp_path_factory):
    """`olivelike bench` with two engines and one that is absent, against a baseline that was much faster.

    The process of `torch` imports for ten seconds of processor time.
    """
    pytest.importorskip(request.param)
    folder = tmp_path_factory.mktemp("bench")
    store = Store.open(folder / "cache", create=True)
    known = {"run_id": "known", "status": "ok", "output": str(small_pipeline), "nodes": []}
    known |= {"workflow": "small", "target": {"name": "cpu"}, "source": {"kind": "folder", "name": "small"}}
    store.put_run(known)
    baseline, saved, csv = folder / "baseline.json", folder / "report.json", folder / "rows.csv"
    row = {
        "engine": "onnxruntime", "provider": "CPUExecutionProvider", "dtype": "float32", "height": 64, "width": 64,
        "steps": STEPS, "batch_size": 1, "disable_safety_checker": False, "cuda_graph": False,
        "median_latency": 1e-5,
    }  # fmt: skip
    baseline.write_text(json.dumps({"kind": "bench/1", "rows": [row], "skipped": []}))
    arguments = ["bench", str(small_pipeline)]
    for engine in ("onnxruntime", request.param, "tensorrt"):
        arguments += ["--engine", engine]
    arguments += ["--steps", str(STEPS), "--batch-count", "2", "--num-prompts", "2", "--threads", "1"]
    arguments += ["--csv", str(csv), "--json-file", str(saved), "--against", str(baseline)]
    arguments += ["--size", "64x64", "--report", "--cache-dir", str(folder / "cache")]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run_command_line(arguments)
    page = (store.run_folder("known") / "report.html").read_text(encoding="utf-8")
    return CommandRun(request.param, status, out.getvalue(), err.getvalue(), csv, page, json.loads(saved.read_bytes()))
