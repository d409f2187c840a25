"""Tests in several processes: `pytest --forks N`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import os, pytest
pytest_plugins = ["tests.forks"]

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    yield tmp_path_factory.mktemp("shared", numbered=False)
    with open("ends", "a") as ends:
        print(os.getpid(), file=ends)

@pytest.fixture(autouse=True)
def process(request, shared):
    with open("processes", "a") as processes:
        print(request.node.path.stem, os.getpid(), os.environ.get("HERE"), file=processes)
"""


@pytest.fixture
def suite(tmp_path):
    """Write files of tests, run them and return what was printed."""

    def suite(*arguments, **files):
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--forks", "2", "-q", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        ran = subprocess.run(
            command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        return ran.returncode, ran.stdout + ran.stderr

    return suite


def processes(tmp_path):
    lines = (tmp_path / "processes").read_text().splitlines()
    return [line.split()[:2] for line in lines]


def test_each_file_has_one_process_and_each_process_ends_what_its_tests_share(suite, tmp_path):
    files = {
        f"file{number}": "import time\n" + "def test_a(): time.sleep(0.2)\ndef test_b(): pass\n" for number in range(4)
    }
    assert suite(**files)[0] == 0
    ran = processes(tmp_path)
    assert len(ran) == 8
    assert len(set(map(tuple, ran))) == 4
    pids = {pid for _, pid in ran}
    assert len(pids) == 2
    assert set((tmp_path / "ends").read_text().split()) == pids


def test_what_fails_is_told_with_what_it_printed_and_what_is_skipped_and_warned_of_is_told_too(suite):
    status, out = suite(
        "-rs",
        one="import os\ndef test_fails():\n    print('from one'); os.system('echo from its child'); assert 0\n",
        two="import pytest, warnings\ndef test_skips(): pytest.skip('no reason')\n"
        "def test_warns(): print('from', 2); warnings.warn('be warned')\n"
        "@pytest.fixture\ndef broken(): raise OSError('no fixture')\ndef test_errs(broken): pass\n",
    )
    assert status == 1, out
    assert "from one\nfrom its child\n" in out
    assert "from 2" not in out
    assert "no reason" in out
    assert "UserWarning: be warned" in out
    assert "OSError: no fixture" in out
    assert "1 failed, 1 passed, 1 skipped, 1 warning, 1 error in" in out


def test_the_test_that_ends_a_process_has_failed_and_all_others_run(suite, tmp_path):
    killed = "import os\ndef test_before(): pass\ndef test_ends(): os.kill(os.getpid(), 9)\ndef test_after(): pass\n"
    last = "import os\ndef test_before(): pass\ndef test_ends(): os._exit(0)\n"
    status, out = suite(killed=killed, last=last, other="def test_other(): pass\n", more="def test_more(): pass\n")
    assert status == 1
    assert set(re.findall(r"the process ended with status (\S+)", out)) == {"-9", "0"}
    assert "2 failed, 5 passed" in out
    assert len(set(map(tuple, processes(tmp_path)))) == 5


def test_after_as_many_failures_as_are_allowed_no_process_goes_on(suite, tmp_path):
    slow = "import pytest, time\n@pytest.mark.parametrize('n', range(100))\ndef test_slow(n): time.sleep(0.2)\n"
    status, out = suite("-x", slow=slow, fails="def test_fails(): assert 0\ndef test_no_more(): pass\n")
    assert status == 1
    assert "stopping after 1 failures" in out
    assert len(processes(tmp_path)) < 50
    assert len((tmp_path / "ends").read_text().split()) == 2
