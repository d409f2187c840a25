"""One contest of small networks, shared by several tests."""

from __future__ import annotations

import os
import signal

import pytest

from olivelike.measure.contest.contest import contest
from olivelike.measure.contest.engine import Turn
from olivelike.measure.contest.runtime_engine import NetworkJob
from tests.fixtures.bench_samples import ONE_THREAD, SIZES, SQUARE, write_network, write_small_pipeline


@pytest.fixture(scope="session")
def small_pipeline(tmp_path_factory):
    """A folder whose pictures take next to no time; not to be changed."""
    return write_small_pipeline(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def square(tmp_path_factory):
    """A network that takes as much memory as it is asked to."""
    path = tmp_path_factory.mktemp("square") / "model.onnx"
    write_network(path, SQUARE)
    return path


@pytest.fixture(scope="session")
def small_contest(square):
    """Three contenders: one is well, one is killed as it opens, one wants 4 TB."""
    jobs = {name: NetworkJob(square, ONE_THREAD, {"n": size}) for name, size in SIZES.items()}

    def kill(event):
        if event.name == "opening" and event.engine == "killed":
            os.kill(event.pid, signal.SIGKILL)

    return contest(jobs, [Turn()], [Turn()] * 4, 300.0, kill)
