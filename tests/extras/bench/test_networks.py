"""Single networks, measured on random inputs."""

from __future__ import annotations

import pytest

from olivelike.errors import SessionError, UsageError
from olivelike.extras.bench import measure_folder, measure_folders
from tests.fixtures.bench_samples import ONE_THREAD


def test_a_network_is_measured_in_a_process_of_its_own(small_pipeline):
    measured = measure_folder(small_pipeline / "unet", ONE_THREAD, runs=5, warmup=1, limit=300)
    assert len(measured.seconds) == 5
    assert 0 < min(measured.seconds) <= measured.median <= measured.percentile(90) == max(measured.seconds)
    assert measured.peak_resident_bytes > 50_000_000
    assert measured.provider == "CPUExecutionProvider"


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(SessionError, match="there is no such model file"):
        measure_folders({"a": tmp_path})
    with pytest.raises(UsageError, match="0 runs"):
        measure_folders({"a": tmp_path}, runs=0)
    with pytest.raises(UsageError, match="within inf s"):
        measure_folders({"a": tmp_path}, limit=float("inf"))
