"""Driving one execution of a DAG: hits are taken, what is ready goes to the executor, what it made is recorded."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from olivelike._files import Lock
from olivelike._untrusted import JsonView
from olivelike.engine.execute.events import Event, EventName, Listener
from olivelike.engine.execute.executor import Advanced, Answer, Demand, Executor, Failed
from olivelike.engine.execute.sharing import Unshared
from olivelike.engine.execute.telling import Teller
from olivelike.engine.execute.weight_makers import WeightMakers
from olivelike.engine.keys import Key
from olivelike.engine.kinds import kind_of
from olivelike.engine.kinds.kind import Done, Task, Workplace
from olivelike.engine.output.lost_values import TOLD, lost_values
from olivelike.engine.plan.forecast import Forecast
from olivelike.engine.plan.node import Node
from olivelike.engine.plan.planner import estimate, explain_status
from olivelike.engine.plan.reasons import Earlier
from olivelike.engine.plan.resolver import Resolution, Resolver, Shelved
from olivelike.errors import DamagedError, PassError, SourceError
from olivelike.model.records.run_record import NodeRecord
from olivelike.store import Action, Root

Status = Literal["hit", "shelf", "executed", "failed", "skipped"]

_SAID_AT_ONCE: Mapping[str, EventName] = {"hit": "node_hit", "shelf": "node_shelved", "skipped": "node_skipped"}
_HEAVY = {"torch", "diffusers"}
"""Libraries that fill a worker's memory; `assets` imports torch by way of diffusers."""
_POLL_SECONDS, _TELL_SECONDS = 0.02, 1.0
"""How long to wait for an answer before looking again: while other runs or files are waited for, and otherwise."""


@dataclass
class Execution:
    """How all nodes ended."""

    results: dict[str, NodeRecord]
    peak_memory_bytes: int


@dataclass(frozen=True)
class Settings:
    """Nodes, bounds and listeners of an execution."""

    run_id: str
    nodes: Sequence[Node]
    """The DAG, parents first."""
    staging: Mapping[str, Path]
    """Folders that nodes with an output write to, by id."""
    history: Earlier
    """Run records of the workflow, newest first, by which reasons are worded."""
    forecast: Forecast
    listener: Listener
    memory_limit: int
    """Bytes that all nodes that run at once may be expected to use."""
    root: Root | None
    """Root of the run, in a store that may be written."""
    began: float
    """When the run did, by `perf_counter`."""
    sharing: Unshared
    """The store behind that of this machine."""
    force: bool = False
    """Drop stored results in place of using them."""
    fail_fast: bool = False
    """Stop all at the first failure."""
    step_timeout: float | None = None
    """Seconds that a step may take; `None` for ever."""


@dataclass
class _Running:
    node: Node
    resolution: Resolution
    reason: str
    lock: Lock | None
    memory: int
    started: float
    ahead: Task | None = None
    """The task, if it began before the digests of its files were known."""
    ended: float = 0.0

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()


class Driver:
    """One execution of a DAG."""

    def __init__(self, settings: Settings, resolver: Resolver, executor: Executor) -> None:
        """Take the executor, which is closed at the end of the run."""
        self._settings, self._resolver, self._executor = settings, resolver, executor
        self._store = resolver.inputs.store
        self._nodes = sorted(settings.nodes, key=lambda node: resolver.inputs.work(node.component), reverse=True)
        """Those of the component that takes longest first."""
        self._teller = Teller([node.id for node in self._nodes], settings.forecast, settings.listener)
        self._running: dict[str, _Running] = {}
        self._resolutions: dict[str, tuple[Resolution, str]] = {}
        self._waiting: set[str] = set()
        """Nodes that wait for something that no answer of a worker will tell: another run, or a file's digest."""
        self._unnamed: dict[str, tuple[_Running, Done, Answer]] = {}
        """What nodes made whose keys are known once their files are hashed."""
        self._ahead: dict[str, Key | None] = {}
        """What `resolve_ahead` said."""
        self._announced: set[str] = set()
        self.execution = Execution({}, 0)
        """How the nodes ended that have ended so far."""
        self._results = self.execution.results

    def run(self) -> Execution:
        """Run until every node has ended; a failure ends its own descendants only.

        Raises `DamagedError` when a stored object turned out damaged; it was set aside, so a new execution remakes it.
        """
        try:
            self._advance()
            while self._running or self._waiting:
                self._teller.tell(self._results)
                answer = self._executor.next_answer(_POLL_SECONDS if self._waiting else _TELL_SECONDS)
                if answer is not None:
                    self._receive(answer)
                if not self._gives_up():
                    self._advance()
        finally:
            self.execution.peak_memory_bytes = self._executor.close()
            if self._settings.fail_fast:
                self._store.sweep()  # What was ended in the middle leaves temporary files.
            for running in self._running.values():
                running.release()
        return self.execution

    def _gives_up(self) -> bool:
        """Skip all that has not ended, and end what runs, if something failed and that is to stop everything."""
        failed = [result.id for result in self._results.values() if result.status == "failed"]
        if not failed or not self._settings.fail_fast:
            return False
        for running in self._running.values():
            self._executor.cancel(running.node.id)
            running.release()
        self._running.clear()
        self._waiting.clear()
        for node in self._open_nodes():
            self._end(node, "skipped", f"{failed[0]} failed")
        return True

    def _advance(self) -> None:
        """Take hits, skip what can't run, start what can, until nothing more moves."""
        moved = True
        while moved:
            moved = False
            self._waiting.clear()
            for node in self._open_nodes():
                moved = self._advance_node(node) or moved

    def _open_nodes(self) -> list[Node]:
        return [node for node in self._nodes if node.id not in self._results and node.id not in self._running]

    def _advance_node(self, node: Node) -> bool:
        before = [node.parent, *node.joins] if node.parent is not None else []
        if any(name not in self._results for name in before):
            return False
        if failed := [name for name in before if self._results[name].status in {"failed", "skipped"}]:
            self._end(node, "skipped", f"{failed[0]} did not succeed")
            return True
        if not self._resolver.is_ready(node):
            return self._start_ahead(node)
        if node.id in self._unnamed:
            self._finish_ahead(node)
            return True
        resolution, reason = self._resolve(node)
        if resolution.done:
            self._hit(node, resolution, reason)
            return True
        if resolution.shelved is not None:
            self._take(node, resolution, resolution.shelved, reason)
            return True
        key = resolution.key
        if key is not None and node.output is None and not self._settings.force:
            question = self._resolver.question(node, key)
            found = self._settings.sharing.fetched(question, self._settings.forecast.seconds(node.id))
            if found is None:
                self._wait(node, self._settings.sharing.waits_for(key.digest))
                return False
            if found.action is not None:
                self._hit(node, Resolution(key, found.action, done=True), found.reason)
                return True
            reason = "; ".join(filter(None, (reason, found.reason)))
        moved = self._start(node, resolution, reason)
        if node.id in self._running and resolution.damage:
            self._settings.listener(Event("warning", {"message": f"{resolution.damage}; it is made anew"}))
        return moved

    def _wait(self, node: Node, reason: str | None) -> None:
        """Look at a node again soon; people are told once why, if there is a reason that may last."""
        self._waiting.add(node.id)
        if reason is not None and node.id not in self._announced:
            self._announced.add(node.id)
            self._emit("node_waiting", node, reason=reason)

    def _resolve(self, node: Node) -> tuple[Resolution, str]:
        if node.id not in self._resolutions:
            resolution = self._resolver.resolve(node)
            reason = explain_status(node, resolution, self._settings.history)[1]
            if self._settings.force and resolution.done:
                if resolution.action is not None:
                    self._store.drop_action(resolution.action.key)
                resolution, reason = Resolution(resolution.key), "the cache was cleaned"
            if resolution.key is not None and node.output is None and self._settings.root is not None:
                self._settings.root.add([resolution.key.digest])
            self._resolutions[node.id] = resolution, reason
        return self._resolutions[node.id]

    def _hit(self, node: Node, resolution: Resolution, reason: str) -> None:
        if resolution.action is not None:
            self._resolver.record_outputs(node, resolution.action.outputs)
            self._settings.sharing.use(resolution.action.key)
            made = {"outputs": resolution.action.outputs, "facts": resolution.action.facts}
        else:
            made = {}
        self._end(node, "hit", reason, resolution, **made)

    def _take(self, node: Node, resolution: Resolution, shelved: Shelved, reason: str) -> None:
        """Store what a shelf knows as what the node made."""
        assert resolution.key is not None
        start = time.perf_counter()
        parts = {self._store.put_bytes(data): len(data) for data in shelved.contents.values()}
        seconds = time.perf_counter() - start
        self._store.put_action(self._action(resolution.key, shelved.outputs, parts, shelved.facts, seconds, 0))
        self._resolver.record_outputs(node, shelved.outputs)
        self._end(node, "shelf", reason, resolution, outputs=shelved.outputs, facts=shelved.facts)

    @staticmethod
    def _action(
        key: Key, outputs: Mapping[str, str], parts: Mapping[str, int], facts: JsonView, seconds: float, peak: int
    ) -> Action:
        created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return Action(key.digest, key.inputs(), dict(outputs), dict(parts), dict(facts), seconds, peak, created)

    def _start_ahead(self, node: Node) -> bool:
        """Start a node whose files are still being hashed, if it runs whatever they hold; tell whether it started.

        Their bytes are read twice then, but the second time from memory. Another machine is told digests.
        """
        here = self._executor.memory_limit is None
        if here and node.output is not None and node.id not in self._unnamed and self._resolver.is_near(node):
            if node.id not in self._ahead:
                self._ahead[node.id] = self._resolver.resolve_ahead(node)
            key = self._ahead[node.id]
            if key is not None and self._start(node, Resolution(key), "the output folder lacks it", ahead=True):
                return True
        self._waiting.add(node.id)
        return False

    def _finish_ahead(self, node: Node) -> None:
        """Give a key to what a node made before its files were hashed, if they are still the same."""
        running, done, answer = self._unnamed.pop(node.id)
        assert running.ahead is not None
        try:
            running.ahead.check_unchanged()
        except SourceError as error:
            self._fail(running, Failed(str(error), error.word), answer)
        else:
            running.resolution = self._resolver.resolve(node)
            running.reason = explain_status(node, replace(running.resolution, done=False), self._settings.history)[1]
            self._finish(running, done, answer)

    def _start(self, node: Node, resolution: Resolution, reason: str, *, ahead: bool = False) -> bool:
        memory = estimate(node, self._nodes, self._resolver.inputs.source).memory_bytes
        used = sum(running.memory for running in self._running.values())
        if len(self._running) >= self._executor.size:
            return False
        if self._running and used + memory > (self._executor.memory_limit or self._settings.memory_limit):
            return False
        lock = None
        if node.output is None and resolution.key is not None:
            lock = self._store.try_lock(resolution.key.digest)
            if lock is None:
                self._wait(node, f"{self._maker(resolution.key)} is making it")
                return False
            if not self._settings.force and self._resolver.stored(node, resolution.key)[0] is not None:
                lock.release()  # Another run made it in the meantime.
                del self._resolutions[node.id]
                return True
        running = _Running(node, Resolution(None) if ahead else resolution, reason, lock, memory, time.perf_counter())
        self._running[node.id] = running
        self._emit("node_started", node, reason=reason, expected_seconds=self._teller.begin(node.id))
        staged, reuse = self._settings.staging.get(node.id), not self._settings.force
        assignment = self._resolver.assignment(node, resolution.key, staged, reuse=reuse, ahead=ahead)
        place = Workplace(node.id, node.component, str(self._store.root), str(self._log_of(node)))
        key, step = resolution.key, node.step
        demand = Demand(
            heavy=key is None or bool(_HEAVY & key.tools.keys()),
            memory_bytes=memory,
            provider=None if step is None else step.instance.resources.provider,
            key=None if key is None else key.digest,
            seconds=None if step is None else self._settings.step_timeout,
        )
        task = kind_of(node).task(place, assignment)
        running.ahead = task if ahead else None
        self._executor.submit(task, demand)
        return True

    def _maker(self, key: Key) -> str:
        """Name who makes a result: a node of another variant with the same key, or a process that is not ours."""
        running = self._running.values()
        return next((other.node.id for other in running if other.resolution.key == key), "another run")

    def _log_of(self, node: Node) -> Path:
        return self._store.log_path(self._settings.run_id, node.id)

    def _receive(self, answer: Answer) -> None:
        running = self._running[answer.node]
        if isinstance(answer.content, Advanced):
            left = self._teller.advance(answer.node, answer.content)
            self._emit("node_progress", running.node, **asdict(answer.content), seconds_left=left)
            return
        del self._running[answer.node]
        running.ended = time.perf_counter()
        try:
            if isinstance(answer.content, Failed):
                self._fail(running, answer.content, answer)
            elif running.ahead is not None:
                self._unnamed[answer.node] = running, answer.content, answer
            else:
                self._finish(running, answer.content, answer)
        finally:
            running.release()

    def _finish(self, running: _Running, done: Done, answer: Answer) -> None:
        peak = answer.peak_memory_bytes
        node, key = running.node, running.resolution.key
        if node.output is None:
            if key is not None:
                action = self._action(key, done.outputs, done.parts, done.facts, done.seconds, peak)
                if answer.host is not None and (flaw := self._flaw(node, key, action)) is not None:
                    message = (
                        f"{node.id}: its worker {answer.host} gave what is no result of it: {flaw}; run without it"
                    )
                    self._fail(running, Failed(message, PassError.word), answer)
                    return
                self._store.put_action(action)
                self._settings.sharing.offer(action, anew=self._settings.force)
            self._resolver.record_outputs(node, done.outputs)
        costs = {"peak_memory_bytes": peak, "memory_before_bytes": done.memory_before_bytes}
        self._end(
            node,
            "executed",
            running.reason,
            running.resolution,
            outputs=done.outputs,
            facts=done.facts,
            # Counted from its end: a new worker takes a while to come up before it begins.
            start_seconds=max(running.started, running.ended - done.seconds) - self._settings.began,
            seconds=done.seconds,
            host=answer.host,
            **costs,
        )
        self._emit("node_finished", node, seconds=round(done.seconds, 3), **costs)
        self._tell_lost_values(node, done.facts)

    def _tell_lost_values(self, node: Node, facts: JsonView) -> None:
        """Warn of weights that an output can't have as they were."""
        makers = WeightMakers(node, self._nodes, self._results, self._resolver.inputs)
        for kind in TOLD if node.output is not None else ():
            if (message := lost_values(node.component, kind, facts, makers.of)) is not None:
                self._settings.listener(Event("warning", {"message": message}))

    def _flaw(self, node: Node, key: Key, action: Action) -> str | None:
        """Return what is wrong with a result that came from another machine; its parts are here."""
        read, question = self._store.read_bytes, self._resolver.question(node, key)
        return question.flaw(action, read) or question.flaw_within(action, read)

    def _fail(self, running: _Running, failed: Failed, answer: Answer) -> None:
        if failed.error == DamagedError.word:
            raise DamagedError(failed.message)
        log = str(self._log_of(running.node))
        self._end(
            running.node,
            "failed",
            running.reason,
            running.resolution,
            error=failed.message,
            log=log,
            start_seconds=running.started - self._settings.began,
            seconds=time.perf_counter() - running.started,
            peak_memory_bytes=answer.peak_memory_bytes,
            memory_before_bytes=failed.memory_before_bytes,
            host=answer.host,
            facts={**failed.facts, "error_kind": failed.error},
        )
        self._emit("node_failed", running.node, error=failed.message, log=log)

    def _end(self, node: Node, status: Status, reason: str, resolution: Resolution | None = None, **ended: Any) -> None:
        key = resolution.key if resolution is not None else None
        self._results[node.id] = NodeRecord(
            node.id,
            node.component,
            node.name,
            status,
            reason,
            node.parent,
            str(node.output.path) if node.output is not None else None,
            None if key is None else key.digest,
            None if key is None else key.inputs(),
            **ended,
        )
        if (event := _SAID_AT_ONCE.get(status)) is not None:
            self._emit(event, node, reason=reason)

    def _emit(self, name: EventName, node: Node, **data: Any) -> None:
        self._settings.listener(Event(name, {"node": node.id, **data}))
