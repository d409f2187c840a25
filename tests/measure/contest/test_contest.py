"""Processes that take turns, and what becomes of the others when one dies, hangs or runs out of memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from olivelike.measure.contest.contest import ChildFailure, ContestInterrupted, contest, hold
from olivelike.measure.contest.engine import Turn, decode_job, encode_job
from olivelike.measure.contest.runtime_engine import NetworkJob, PipelineJob
from olivelike.runtime.sessions.session_settings import parse_provider
from tests.fixtures.bench_samples import ONE_THREAD


def test_the_others_go_on_when_one_is_killed(small_contest):
    well = small_contest["well"]
    assert (well.status, len(well.warmup), len(well.timings)) == ("ok", 1, 4)
    assert all(timing.seconds > 0 for timing in well.timings)
    assert well.peak_bytes is not None


def test_one_that_is_killed_is_marked_with_how(small_contest):
    killed = small_contest["killed"]
    assert (killed.status, killed.timings) == ("died", [])
    assert killed.message.startswith("was killed by SIGKILL, as the system does when memory runs out")


def test_one_that_runs_out_of_memory_is_marked(small_contest):
    hungry = small_contest["hungry"]
    assert hungry.status == "out of memory"
    assert "out of memory on CPUExecutionProvider with x (1000000, 1)" in hungry.message


def test_one_that_hangs_is_killed_after_its_limit(square):
    pids = []

    def stop(event):
        if event.name == "opening":
            pids.append(event.pid)
            os.kill(event.pid, signal.SIGSTOP)

    results = contest({"hung": NetworkJob(square, ONE_THREAD, {"n": 4})}, [], [Turn()], 0.3, stop)
    assert results["hung"].status == "timed out"
    assert results["hung"].message == "gave no answer within 0.3 s, and was stopped"
    assert not psutil.pid_exists(pids[0])


def test_the_machine_is_looked_at_after_the_last_run_while_processes_are_there(square):
    pids, runs = [], []

    def listen(event):
        pids.append(event.pid)
        runs.append(event.name)

    contest(
        {"one": NetworkJob(square, ONE_THREAD, {"n": 4})},
        [],
        [Turn()] * 2,
        300.0,
        listen,
        lambda: runs.append(psutil.pid_exists(pids[0])),
    )
    assert runs[-3:] == ["measured", "measured", True]
    assert not psutil.pid_exists(pids[0])


def test_an_interruption_leaves_no_process_behind(square):
    pids = []

    def interrupt(event):
        pids.append(event.pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        contest({"one": NetworkJob(square, ONE_THREAD, {"n": 4})}, [], [Turn()], 10, interrupt)
    assert not any(psutil.pid_exists(pid) for pid in pids)


class FakeChild:
    """Answers at once, in this process; one of the name `third` fails."""

    def __init__(self, log):
        self.pid, self._fails = os.getpid(), log.stem == "2"

    def ask(self, message, limit):
        if self._fails:
            raise ChildFailure("absent", "third: there is none")
        found = {"facts": {}, "load_seconds": 1.0} if "job" in message else {"timing": {"seconds": 0.5}}
        return {**found, "peak_bytes": 1, "resident_bytes": 1, "device_bytes": None}

    def stop(self):
        pass


def test_an_interruption_keeps_what_was_measured(square, monkeypatch):
    seen = []

    def interrupt(event):
        seen.append(event)
        if [one.name for one in seen].count("measured") == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("olivelike.measure.contest.contest.Child", FakeChild)
    jobs = dict.fromkeys(("first", "second", "third"), NetworkJob(square, ONE_THREAD))
    with pytest.raises(ContestInterrupted) as caught:
        contest(jobs, [Turn()], [Turn()] * 4, 300.0, interrupt)
    measured = caught.value.measured
    assert {name: len(one.timings) for name, one in measured.items()} == {"first": 1, "second": 2, "third": 0}
    assert (measured["third"].status, measured["third"].message) == ("absent", "there is none")
    assert [event.seconds for event in seen if event.name == "measuring"] == [4.0]
    assert [event.text for event in seen if event.name == "failed"] == ["there is none"]


def test_jobs_come_out_of_json_as_they_went_in(square):
    providers = (parse_provider("cuda:device_id=1"), parse_provider("openvino"))
    sessions = replace(ONE_THREAD, providers=providers, device="4090", custom_operators=("a.so",), cuda_graph=True)
    network = NetworkJob(square, sessions, {"n": 4})
    pipeline = PipelineJob("openvino", square.parent, sessions, (64, 32), 20, safety=True)
    assert decode_job(encode_job(network)) == network
    assert decode_job(encode_job(pipeline)) == pipeline


ALLOCATES = """
from olivelike.measure.contest.memory import peak_resident_bytes
block = b"x" * 150_000_000
del block
print(peak_resident_bytes())
"""
WAITS = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
said = int(child.stdout.read())
_, _, usage = os.wait4(child.pid, 0)
print(said / (usage.ru_maxrss * 1024))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_peak_memory_is_what_the_system_tells_the_parent():
    done = subprocess.run([sys.executable, "-c", WAITS, ALLOCATES], capture_output=True, text=True, check=True)
    assert 0.9 < float(done.stdout) < 1.1


DRIVES = """
import json, os, subprocess, sys
worker = subprocess.Popen(
    [sys.executable, "-m", "olivelike.measure.contest.contest_worker"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
for line in sys.argv[1:]:
    worker.stdin.write(line + "\\n")
    worker.stdin.flush()
    said = json.loads(worker.stdout.readline())["peak_bytes"]
worker.stdin.close()
_, _, usage = os.wait4(worker.pid, 0)
print(said / (usage.ru_maxrss * 1024))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_peak_memory_of_a_whole_pipeline_is_what_the_system_tells_the_parent(small_pipeline):
    job = PipelineJob("onnxruntime", small_pipeline, ONE_THREAD, (64, 64), 2, safety=True)
    lines = [json.dumps(encode_job(job)), *[json.dumps(vars(Turn("a red circle"))) for _ in range(3)]]
    done = subprocess.run([sys.executable, "-c", DRIVES, *lines], capture_output=True, text=True, check=True)
    assert 0.9 < float(done.stdout) < 1.1


def test_who_begins_changes_from_turn_to_turn_after_all_are_warm():
    told = []

    class Noting:
        def __init__(self, name):
            self.name = name

        def run(self, turn, *, measured):
            told.append(f"{self.name}{turn.seed}" if measured else f"{self.name}-")

        def warmed_up(self):
            told.append(f"{self.name} warm")

    hold([Noting("a"), Noting("b")], [Turn()], [Turn(seed=1), Turn(seed=2)], lambda: told.append("begin"))
    assert told == ["a-", "a warm", "b-", "b warm", "begin", "a1", "b1", "b2", "a2"]
