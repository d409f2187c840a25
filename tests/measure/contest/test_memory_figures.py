"""The memory that a row has, against what `/usr/bin/time -v` prints for the same engine doing the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

from olivelike.measure.contest.contest import contest
from olivelike.measure.contest.engine import Turn, encode_job
from olivelike.measure.contest.runtime_engine import PipelineJob
from tests.fixtures.bench_samples import ONE_THREAD
from tests.fixtures.little_pipeline import little_pipeline

TIME = shutil.which("time")


@pytest.mark.skipif(TIME is None, reason="needs GNU time")
def test_peak_memory_is_what_time_prints(one_torch_thread):
    job = PipelineJob("onnxruntime", little_pipeline(), ONE_THREAD, (32, 32), steps=2, safety=True)
    turns = [Turn("a red circle", 1, 1)] * 3
    measured = contest({"one": job}, [], turns, 300.0)["one"]
    lines = [json.dumps(encode_job(job)), *(json.dumps(vars(turn)) for turn in turns)]
    with subprocess.Popen(
        [TIME, "-v", sys.executable, "-P", "-m", "olivelike.measure.contest.contest_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in lines:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answer = process.stdout.readline()  # Not in the `assert`, which pytest would evaluate again as it fails.
            assert "timing" in answer or "load_seconds" in answer
        _, errors = process.communicate()
    printed = re.search(r"Maximum resident set size \(kbytes\): (\d+)", errors)
    assert printed, errors
    assert measured.peak_bytes == pytest.approx(int(printed[1]) * 1024, rel=0.1)
