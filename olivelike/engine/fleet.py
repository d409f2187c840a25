"""The combinations of a workflow's `matrix`, planned and run together: what they share runs once.

Each combination is a run of its own, with its own record and output; all of them give their tasks to one executor, and
a node that several need is made by the first and a hit for the others, as it is between runs of different users.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from olivelike._text import listed
from olivelike.engine.execute.events import Event, Listener
from olivelike.engine.execute.executor import LIGHT, Advanced, Answer, Demand, Executor, ExecutorMaker
from olivelike.engine.execute.sharing import open_for_looking, open_sharing
from olivelike.engine.explanation import Explanation, explain_plan
from olivelike.engine.kinds.kind import Task
from olivelike.engine.plan.planner import Plan
from olivelike.engine.preparation import Pin, pin, plan_prepared, prepare, validate
from olivelike.engine.prepared import DEFAULTS, EarlierRuns, Options, Prepared
from olivelike.engine.run import ReportWriter, make_executor, run
from olivelike.engine.run_result import RunResult, readable_runs
from olivelike.errors import Interrupted, OlivelikeError, StoreError, WorkflowError
from olivelike.store import new_run_id
from olivelike.workflow import LoadedWorkflow
from olivelike.workflow.code.once import read_once
from olivelike.workflow.matrix import Combination, read_combinations
from olivelike.workflow.places import Place, find_workflow

PARALLEL: Final = 8
"""Number of combinations that run at once, unless something else is said."""
_SHOWN: Final = 3
"""Most combinations that a message names."""
_LISTEN_SECONDS = 0.02
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class FleetPlan:
    """The plans of all combinations."""

    plans: dict[str, tuple[Prepared, Plan]]
    """By combination."""

    @property
    def shared(self) -> int:
        """Number of nodes to run whose key one of another combination has too."""
        keys = [
            planned.key.digest
            for _, plan in self.plans.values()
            for planned in plan.nodes
            if planned.status == "miss" and planned.key is not None and planned.node.output is None
        ]
        return len(keys) - len(set(keys))


@dataclass(frozen=True)
class FleetResult:
    """How a run of all combinations ended."""

    results: dict[str, RunResult | OlivelikeError]
    """By combination, in the order of the matrix: the run, or why there is none."""
    seconds: float

    @property
    def failed(self) -> dict[str, OlivelikeError]:
        """Why runs failed, by combination."""
        return {name: one for name, one in self.results.items() if isinstance(one, OlivelikeError)}


def combinations(ref: str | Path | Place, options: Options = DEFAULTS) -> tuple[Combination, ...]:
    """Return the combinations of a workflow's matrix, none if it has none.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: Of which the overrides of the matrix count.

    Raises:
        WorkflowError: for what is wrong with the file or with the matrix.
    """
    return read_combinations(find_workflow(ref), options.overrides)


def validate_fleet(ref: str | Path | Place, options: Options = DEFAULTS) -> dict[str, LoadedWorkflow]:
    """Load every combination of a workflow's matrix and check all that can be checked without the sources.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: As for `validate`.

    Returns:
        The workflow of each combination, by its name.

    Raises:
        WorkflowError: with everything that is wrong with any; what is wrong with several is told once.
        PluginError: if a plugin can't be loaded.
    """
    loaded: dict[str, LoadedWorkflow] = {}
    wrong: dict[str, list[str]] = {}
    found = combinations(ref, options)
    with read_once():
        for one in found:
            try:
                loaded[one.name] = validate(ref, replace(options, combination=one))
            except WorkflowError as error:
                for finding in error.findings:
                    wrong.setdefault(finding, []).append(one.name)
    if wrong:
        raise WorkflowError(*(_told_of(finding, names, len(found)) for finding, names in wrong.items()))
    return loaded


def _told_of(finding: str, names: Sequence[str], total: int) -> str:
    return (
        finding
        if len(names) == total
        else f"{finding}\n  in the combination{'s' * (len(names) > 1)} {listed(names, _SHOWN)}"
    )


def explain_fleet(
    ref: str | Path | Place, options: Options = DEFAULTS, node: str | None = None
) -> dict[str, tuple[Explanation, ...]]:
    """Say why each node of each combination would run or not; nothing changes.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: As for `plan`.
        node: One node, such as `unet.convert`; combinations without it are left out.

    Returns:
        The explanations of each combination, by its name.

    Raises:
        UsageError: if no combination has such a node; the message has the nearest.
        OlivelikeError: as for `plan`.
    """
    plans = plan_fleet(ref, options).plans
    with_it = {name: one for name, one in plans.items() if node is None or one[1].has(node)}
    return {name: explain_plan(*one, node) for name, one in (with_it or dict([*plans.items()][:1])).items()}


def pin_fleet(ref: str | Path | Place, options: Options = DEFAULTS) -> dict[str, Pin]:
    """Keep what is stored of every combination from being collected, each under its own name.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: As for `pin`.

    Returns:
        What was pinned, by combination.

    Raises:
        OlivelikeError: as for `pin`, for the first combination of which nothing is stored.
    """
    with read_once():
        return {one.name: pin(ref, replace(options, combination=one)) for one in combinations(ref, options)}


def plan_fleet(ref: str | Path | Place, options: Options = DEFAULTS) -> FleetPlan:
    """Plan every combination of a workflow's matrix.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: What the front end asks for.

    Raises:
        OlivelikeError: as `prepare`, for the first combination that is wrong.
    """
    plans: dict[str, tuple[Prepared, Plan]] = {}
    with read_once(), contextlib.ExitStack() as stack:
        for one in combinations(ref, options):
            prepared = prepare(ref, replace(options, combination=one), writes=False)
            if options.sharing is None:
                sharing = open_for_looking(prepared.shared, prepared.store)
                stack.callback(sharing.close, hurry=True)
                options = replace(options, earlier=EarlierRuns(readable_runs(prepared.store)), sharing=sharing)
                prepared = replace(prepared, options=replace(options, combination=one))
            plans[one.name] = prepared, plan_prepared(prepared)
    return FleetPlan(plans)


def run_fleet(
    ref: str | Path | Place,
    options: Options = DEFAULTS,
    listener: Listener = lambda _: None,
    report: ReportWriter | None = None,
    executor: ExecutorMaker | None = None,
    *,
    most: int = PARALLEL,
) -> FleetResult:
    """Run every combination of a workflow's matrix; what fails in one leaves the others alone.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: What the front end asks for.
        listener: Receives every event, with its `combination`; one at a time.
        report: Writes the report of each run, as for `run`.
        executor: What runs the tasks of all; by default worker processes, or the cluster of the options.
        most: How many combinations are at work at once.

    Raises:
        WorkflowError: for a wrong file or matrix, or a wrong combination; nothing has run then.
        Interrupted: if the user cancelled it.
    """
    start, found = time.perf_counter(), combinations(ref, options)
    validate_fleet(ref, options)  # What is wrong with any is known before the first is made.
    if not found:
        return FleetResult({}, time.perf_counter() - start)
    first = prepare(ref, replace(options, combination=found[0]), writes=True)
    store = first.store
    telling = threading.Lock()

    def tell_all(event: Event) -> None:
        with telling:
            listener(event)

    sharing = open_sharing(first.shared, store, tell_all, new_run_id())
    options = replace(options, earlier=EarlierRuns(readable_runs(store)), sharing=sharing)
    results: dict[str, RunResult | OlivelikeError] = {}
    pool = _SharedExecutor(lambda log: make_executor(options, executor, log))

    def do(one: Combination) -> RunResult | OlivelikeError:
        def tell(event: Event) -> None:
            tell_all(Event(event.name, {"combination": one.name, **event.data}))

        try:
            asked = replace(options, combination=one)
            return run(ref, asked, tell, report, lambda _, log: pool.lend(one.name, log), alone=False)
        except OlivelikeError as error:
            return error

    with read_once(), ThreadPoolExecutor(most, "combination") as threads:
        futures = {threads.submit(do, one): one.name for one in found}
        try:
            for future in _as_they_end(futures):
                results[futures[future]] = future.result()
                if options.fail_fast and isinstance(results[futures[future]], OlivelikeError):
                    pool.stop()
                    threads.shutdown(wait=False, cancel_futures=True)
        except KeyboardInterrupt:
            pool.stop()
            threads.shutdown(cancel_futures=True)
            raise Interrupted("interrupted; what was finished is stored, run again to continue") from None
        finally:
            pool.close()
            sharing.close(hurry=sys.exception() is not None)
    if store.writable:
        try:
            store.gc()
        except StoreError as failure:
            listener(Event("warning", {"message": f"after the run: {failure}"}))
    in_order = {one.name: results[one.name] for one in found if one.name in results}
    return FleetResult(in_order, time.perf_counter() - start)


def _as_they_end(futures: Any) -> Iterator[Future[RunResult | OlivelikeError]]:
    waiting = set(futures)
    while waiting:
        ended, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
        yield from (future for future in ended if not future.cancelled())


class _SharedExecutor:
    """One executor that many runs give their tasks to; a thread of its own speaks with it."""

    def __init__(self, make: Callable[[Any], Executor]) -> None:
        self._make = make
        self._executor: Executor | None = None
        self._lock = threading.Lock()
        self._calls: deque[Callable[[Executor], None]] = deque()
        """Calls that wait for the executor."""
        self._waiting: deque[tuple[Task, Demand]] = deque()
        self._running: dict[str, int] = {}
        """Expected bytes of each task, by its name."""
        self._lent: dict[str, _Lent] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.peak = 0

    def lend(self, name: str, log: Any) -> _Lent:
        """Return the executor as one run sees it."""
        with self._lock:
            if self._executor is None:
                self._executor = self._make(log)
                self._thread = threading.Thread(target=self._serve, args=(self._executor,), daemon=True)
                self._thread.start()
            lent = self._lent[name] = _Lent(self, name)
        return lent

    def give(self, task: Task, demand: Demand) -> None:
        self._calls.append(lambda _: self._waiting.append((task, demand)))

    def drop(self, names: Sequence[str]) -> None:
        """End tasks by their names."""

        def do(executor: Executor) -> None:
            for name in names:
                if self._running.pop(name, None) is not None:
                    executor.cancel(name)
            self._waiting = deque(item for item in self._waiting if item[0].place.node not in names)

        self._calls.append(do)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Have all runs end as if the user had cancelled them."""
        self._stopped.set()

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _serve(self, executor: Executor) -> None:
        try:
            while not (self._stopped.is_set() and not self._calls and not self._running):
                while self._calls:
                    self._calls.popleft()(executor)
                self._start_what_fits(executor)
                answer = executor.next_answer(_LISTEN_SECONDS)
                if answer is not None:
                    self._pass_on(answer)
                if self._stopped.is_set():
                    self._waiting.clear()
                    self._running.clear()
        finally:
            self.peak = executor.close()

    def _start_what_fits(self, executor: Executor) -> None:
        from olivelike._memory import default_limit

        limit = executor.memory_limit
        while self._waiting and len(self._running) < executor.size:
            task, demand = self._waiting[0]
            used = sum(self._running.values())
            if self._running and used + demand.memory_bytes > (limit or default_limit()):
                return
            self._waiting.popleft()
            self._running[task.place.node] = demand.memory_bytes
            executor.submit(task, demand)

    def _pass_on(self, answer: Answer) -> None:
        name, _, node = answer.node.partition("/")
        if not isinstance(answer.content, Advanced):
            self._running.pop(answer.node, None)
        self._lent[name].answers.put(replace(answer, node=node))


class _Lent:
    """The shared executor as one run sees it: it takes every task at once, and lets it wait."""

    size = _NO_LIMIT
    memory_limit = _NO_LIMIT

    def __init__(self, shared: _SharedExecutor, name: str) -> None:
        self._shared, self._name = shared, name
        self._nodes: set[str] = set()
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def submit(self, task: Task, demand: Demand = LIGHT) -> None:
        """Give a task on, under a name that no other run has."""
        self._nodes.add(task.place.node)
        named = replace(task, place=replace(task.place, node=f"{self._name}/{task.place.node}"))
        self._shared.give(named, demand)

    def next_answer(self, timeout: float) -> Answer | None:
        """Return what a task says next."""
        if self._shared.stopped:
            raise KeyboardInterrupt
        with contextlib.suppress(queue.Empty):
            answer = self.answers.get(timeout=timeout)
            if not isinstance(answer.content, Advanced):
                self._nodes.discard(answer.node)
            return answer
        return None

    def cancel(self, node: str) -> None:
        """End a node's task."""
        self._nodes.discard(node)
        self._shared.drop([f"{self._name}/{node}"])

    def close(self) -> int:
        """End the tasks of this run; the others go on."""
        self._shared.drop([f"{self._name}/{node}" for node in self._nodes])
        return self._shared.peak
