"""What is said of tests that run in several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests.fixtures.forked_workers import ForkedWorkers

def pytest_configure(config):
    config.pluginmanager.register(ForkedWorkers(2, lambda item: item.path.name))
"""
SEVERAL = """
import warnings

def test_fails(tmp_path):
    print("said before")
    assert [str(tmp_path)] == []

def test_warns():
    warnings.warn("careful")
"""
KILLED = """
import os

def test_passes():
    pass

def test_is_killed():
    os.kill(os.getpid(), 9)

def test_comes_later():
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="tests are forked on Linux alone")
def test_failures_warnings_and_lost_processes_are_reported(tmp_path: Path) -> None:
    for name, text in {"conftest": CONFTEST, "test_several": SEVERAL, "test_killed": KILLED}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n", encoding="utf-8")
    plugins = ("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugins, "--basetemp", str(tmp_path / "base")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "said before" in done.stdout
    assert "UserWarning: careful" in done.stdout
    assert "FAILED test_killed.py::test_is_killed - process w" in done.stdout
    assert "2 tests did not run to their end, since a process was lost" in done.stdout
    assert "2 failed, 2 passed, 1 warning" in done.stdout
