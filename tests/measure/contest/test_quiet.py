"""Whether a machine was quiet while it measured, and what a row says if it was not."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from olivelike.measure.contest.memory import Surroundings, noise, outliers, spread_percent, surveying

QUIET = Surroundings(10.0, 0.0, (0.5,))
BURNS = "while True: pass"
STARTS = """
import subprocess, sys
burn = [sys.executable, "-c", "while True: pass"]
nowhere = subprocess.DEVNULL
print(subprocess.Popen(burn, stdout=nowhere, stderr=nowhere, start_new_session=True).pid)
"""


def test_quiet_runs_that_agree_have_no_note():
    assert noise([1.0, 1.01, 0.99, 1.02, 1.0], QUIET) is None


def test_a_run_far_from_the_others_is_an_outlier_and_named():
    seconds = [1.0, 1.01, 0.99, 1.02, 3.5]
    assert outliers(seconds) == [3.5]
    said = "1 of its 5 runs is an outlier (3.5 s; the median is 1.01 s): measure again on a quiet machine"
    assert noise(seconds, QUIET) == said


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0, 9.0], [1.0, 1.0001, 1.02], [1.0, 1.0, 1.05]])
def test_few_runs_or_small_differences_have_no_outlier(seconds):
    assert outliers(seconds) == []


def test_runs_that_differ_much_are_noted_with_how_much():
    assert spread_percent([11.6, 32.4]) == pytest.approx(94.5, abs=0.1)
    assert noise([11.6, 32.4], QUIET) == "its runs took 11.6 to 32.4 s: measure again on a quiet machine"
    assert spread_percent([1.0]) is None


def test_other_processes_are_noted_with_their_share_of_the_processors():
    cores = psutil.cpu_count()
    busy = Surroundings(10.0, 6.0 * cores, (9.0, 9.4))
    assert busy.other_percent == pytest.approx(60)
    said = "other processes took 60 % of the processors meanwhile (load average 9.2): measure again on a quiet machine"
    assert noise([1.0, 1.0], busy) == said


def test_nothing_measured_has_no_share():
    assert Surroundings().other_percent is None
    assert Surroundings().load is None


def cpu_seconds(process):
    return sum(process.cpu_times()[:2])


def survey(processes):
    """Return what was found in a while, and what processes took of it."""
    with surveying() as found:
        begun = sum(map(cpu_seconds, processes))
        time.sleep(0.4)
        taken = sum(map(cpu_seconds, processes)) - begun
    return found[0], taken


def test_what_processes_that_are_not_ours_take_is_counted():
    started = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True, timeout=60)
    other = psutil.Process(int(started.stdout))  # Its parent has ended.
    try:
        found, taken = survey([other])
    finally:
        other.kill()
    assert found.other_seconds > 0.9 * taken - 0.05


def test_what_our_own_processes_take_is_not_counted():
    ours = [subprocess.Popen([sys.executable, "-c", BURNS]) for _ in range(psutil.cpu_count())]
    try:
        found, taken = survey([psutil.Process(one.pid) for one in ours])
    finally:
        for one in ours:
            one.kill()
            one.wait()
    capacity = found.seconds * psutil.cpu_count()
    assert found.other_seconds + taken < 1.05 * capacity + 0.1  # More there is not, however busy others are.
