"""Worker processes that die, and those that hold too much; and tasks done in this process."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from olivelike.digest import canonical_json
from olivelike.engine.execute import process_executor
from olivelike.engine.execute.executor import Answer, Demand, Executor, Failed
from olivelike.engine.execute.process_executor import ProcessExecutor
from olivelike.engine.kinds.asset_nodes import TokenizerTask
from olivelike.engine.kinds.kind import Workplace
from olivelike.errors import DamagedError, SourceError
from olivelike.store import Store
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.wait_until import wait_until


@pytest.fixture
def task(tmp_path: Path):
    """Return a task that soon tells that a pipeline has no tokenizer, or, on request, that its table is lost."""
    table = Store.open(tmp_path / "cache").put_bytes(canonical_json({}))

    def make(node: str = "tokenizer", *, lost: bool = False) -> TokenizerTask:
        place = Workplace(node, "tokenizer", str(tmp_path / "cache"), str(tmp_path / f"{node}.log"))
        return TokenizerTask(place, "0" * 64 if lost else table)

    return make


def answer_of(executor: Executor) -> Answer:
    end = time.monotonic() + 60
    while (answer := executor.next_answer(0.1)) is None:
        assert time.monotonic() < end
    return answer


@pytest.fixture
def processes(tmp_path: Path):
    executor = ProcessExecutor(2, tmp_path / "log")
    yield executor
    executor.close()
    assert executor.pids == {}


@pytest.mark.parametrize("make", [ProcessExecutor, InlineExecutor])
def test_a_task_says_how_it_ended_and_its_log_tells_more(make, task, tmp_path: Path) -> None:
    executor = make(1, tmp_path / "log")
    try:
        executor.submit(task())
        found = answer_of(executor)
        executor.submit(task("other", lost=True))
        lost = answer_of(executor)
    finally:
        assert executor.close() > 0
    assert found.node == "tokenizer"
    assert found.peak_memory_bytes > 0
    assert isinstance(found.content, Failed)
    assert found.content.error == SourceError.word
    assert "the source has no tokenizer" in found.content.message
    assert "Traceback" in (tmp_path / "tokenizer.log").read_text(encoding="utf-8")
    assert isinstance(lost.content, Failed)
    assert lost.content.error == DamagedError.word
    assert lost.content.message.startswith("other: its table of assets (000000000000) was lost")


@pytest.mark.parametrize("make", [ProcessExecutor, InlineExecutor])
def test_a_task_that_is_cancelled_says_nothing(make, task, tmp_path: Path) -> None:
    executor = make(1, tmp_path / "log")
    try:
        executor.submit(task())
        executor.cancel("tokenizer")
        assert executor.next_answer(0.2) is None
        executor.submit(task("other"))
        assert answer_of(executor).node == "other"
    finally:
        executor.close()


def test_a_worker_is_used_again_and_replaced_when_it_died_while_idle(processes, task) -> None:
    processes.submit(task())
    answer_of(processes)
    (first,) = processes.pids
    processes.submit(task())
    answer_of(processes)
    assert list(processes.pids) == [first]
    psutil.Process(first).kill()
    wait_until(lambda: processes._workers[0].has_ended)  # Its first thread is a zombie before the last has ended.
    processes.submit(task())
    assert "the source has no tokenizer" in answer_of(processes).content.message
    assert first not in processes.pids


def test_a_worker_that_dies_at_work_fails_its_task(processes, task) -> None:
    processes.submit(task())
    answer_of(processes)
    (pid,) = processes.pids
    psutil.Process(pid).suspend()  # Else it may answer first.
    processes.submit(task())
    psutil.Process(pid).kill()
    content = answer_of(processes).content
    assert isinstance(content, Failed)
    assert content.message.startswith("its process was killed by SIGKILL, as the system does when memory runs out")
    assert processes.pids == {}


def test_a_worker_that_holds_too_much_is_replaced_only_when_all_places_are_taken(
    processes, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_one(*, heavy: bool) -> None:
        processes.submit(task(), Demand(heavy=heavy))
        answer_of(processes)

    run_one(heavy=False)
    (first,) = processes.pids
    monkeypatch.setattr(process_executor, "_REUSE_BELOW", 0)
    run_one(heavy=True)
    assert list(processes.pids) == [first]
    run_one(heavy=False)
    assert len(processes.pids) == 2
    assert first in processes.pids
    run_one(heavy=False)
    assert len(processes.pids) == 2
    assert first not in processes.pids
