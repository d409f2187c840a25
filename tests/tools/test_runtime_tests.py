"""The tests of what draws and serves pass where `olivelike-runtime` alone is installed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tools.wheels import ROOT


@pytest.mark.slow
def test_what_draws_and_serves_passes_its_tests_without_the_rest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.runtime_tests"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 1300, done.stdout[-5000:]
