"""The executor: runs ready nodes in worker processes and tells the resolver what they produced."""

from __future__ import annotations

import datetime as dt
import queue
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from olivelike.engine.execute.events import Event
from olivelike.engine.execute.job import Job, checkpoint_input, embedding_inputs, lora_inputs
from olivelike.engine.execute.memory_budget import MemoryWatch, resident
from olivelike.engine.execute.pool import Pool
from olivelike.engine.execute.telling import Teller
from olivelike.engine.plan import Resolution, estimate, judge
from olivelike.errors import DamagedError, PassError
from olivelike.store import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from olivelike._files import Lock
    from olivelike.engine.execute.events import EventName, Listener
    from olivelike.engine.execute.pool import Answer, Worker
    from olivelike.engine.plan import Additions, Key, Node, Resolver
    from olivelike.engine.plan.forecast import Forecast
    from olivelike.model.records.run_record import RunRecord
    from olivelike.sources import PipelineSource
    from olivelike.store import Root, Store
    from olivelike.workflow import LoadedWorkflow

Status = Literal["hit", "executed", "failed", "skipped"]

_HEAVY = {"torch", "diffusers"}
"""Libraries that fill a worker's memory; `assets` imports torch by way of diffusers."""
_POLL_SECONDS, _TELL_SECONDS = 0.1, 1.0
"""How long to wait for an answer before looking again: while other runs or files are waited for, and otherwise.
A wait without an end can't be interrupted on Windows."""
_REUSE_BELOW = 700 << 20
"""A worker that holds more than this is replaced before a job that needs no heavy library."""


@dataclass
class NodeResult:
    """How one node ended."""

    id: str
    component: str
    name: str
    status: Status
    reason: str = ""
    key: str | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    start_seconds: float | None = None
    """From the beginning of the run; `None` of what did not run."""
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    """The most that its worker had resident, with what that had before."""
    memory_before_bytes: int = 0
    """What its worker had resident as it began."""
    error: str | None = None
    log: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)


@dataclass
class Execution:
    """How all nodes ended."""

    results: dict[str, NodeResult]
    peak_memory_bytes: int


@dataclass
class _Running:
    node: Node
    resolution: Resolution
    reason: str
    lock: Lock | None
    memory: int
    started: float


class Executor:
    """One execution of a DAG."""

    def __init__(
        self,
        nodes: Sequence[Node],
        workflow: LoadedWorkflow,
        source: PipelineSource,
        additions: Additions,
        store: Store,
        resolver: Resolver,
        *,
        run_id: str,
        staging: Mapping[str, Path],
        history: Iterable[RunRecord],
        workers: int,
        memory_limit: int,
        forecast: Forecast,
        listener: Listener,
        root: Root | None,
        force: bool,
        began: float,
        fail_fast: bool,
    ) -> None:
        """Set up.

        `force` drops stored results in place of using them, `root` is that of a store that may be written, `began` is
        when the run did (`perf_counter`), `fail_fast` stops all at the first failure.
        """
        self._nodes = {node.id: node for node in nodes}
        self._workflow, self._source, self._additions = workflow, source, additions
        self._store, self._resolver = store, resolver
        self._run_id, self._staging, self._history = run_id, staging, history
        self._memory_limit, self._listener, self._root, self._force = memory_limit, listener, root, force
        self._began, self._fail_fast = began, fail_fast
        self._teller = Teller(self._nodes, forecast, listener)
        self._pool = Pool(workers, store.log_path(run_id, "workers"))
        self._memory = MemoryWatch(self._pool)
        self._results: dict[str, NodeResult] = {}
        self._running: dict[Worker, _Running] = {}
        self._resolutions: dict[str, tuple[Resolution, str]] = {}
        self._waiting: set[str] = set()
        """Nodes that wait for something that no answer of a worker will tell: another run, or a file's digest."""
        self._announced: set[str] = set()

    def run(self) -> Execution:
        """Run until every node has ended; a failure ends its own descendants only.

        Raises:
            DamagedError: when a stored object turned out damaged; it was set aside, so a new execution remakes it.
        """
        self._memory.start()
        try:
            self._advance()
            while self._running or self._waiting:
                self._teller.tell(self._results)
                self._receive()
                if not self._gives_up():
                    self._advance()
        finally:
            self._memory.stop()
            self._pool.close()
            if self._fail_fast:
                self._store.sweep()  # What was ended in the middle leaves temporary files.
            for running in self._running.values():
                _release(running)
        return self.execution

    def _gives_up(self) -> bool:
        """Skip all that has not ended, and end what runs, if something failed and that is to stop everything."""
        failed = [result.id for result in self._results.values() if result.status == "failed"]
        if not failed or not self._fail_fast:
            return False
        for running in self._running.values():
            _release(running)
        self._running.clear()
        self._waiting.clear()
        for node in self._open_nodes():
            self._end(node, "skipped", f"{failed[0]} failed", None)
        return True

    @property
    def execution(self) -> Execution:
        """How the nodes ended that have ended so far."""
        return Execution(self._results, self._memory.peak)

    def _advance(self) -> None:
        """Settle hits, skip what can't run, start what can, until nothing more moves."""
        moved = True
        while moved:
            moved = False
            self._waiting.clear()
            for node in self._open_nodes():
                moved = self._advance_node(node) or moved

    def _open_nodes(self) -> list[Node]:
        """Return the nodes that have neither ended nor started, largest component first."""
        busy = {running.node.id for running in self._running.values()}
        nodes = [
            node for node in self._nodes.values() if node.id not in self._results and node.id not in busy
        ]
        sizes = {name: checkpoint.elements for name, checkpoint in self._source.checkpoints.items()}
        return sorted(nodes, key=lambda node: -sizes.get(node.component, 0))

    def _advance_node(self, node: Node) -> bool:
        parent = self._results.get(node.parent) if node.parent is not None else None
        if node.parent is not None and parent is None:
            return False
        if parent is not None and parent.status in {"failed", "skipped"}:
            self._end(node, "skipped", f"{node.parent} did not succeed", None)
            return True
        if not self._resolver.is_ready(node):
            self._waiting.add(node.id)
            return False
        resolution, reason = self._resolve(node)
        if resolution.done:
            self._hit(node, resolution, reason)
            return True
        return self._start(node, resolution, reason)

    def _resolve(self, node: Node) -> tuple[Resolution, str]:
        if node.id not in self._resolutions:
            resolution = self._resolver.resolve(node)
            reason = judge(node, resolution, self._history)[1]
            if self._force and resolution.done:
                if resolution.action is not None:
                    self._store.drop_action(resolution.action.key)
                resolution, reason = Resolution(resolution.key), "the cache was cleaned"
            if resolution.key is not None and node.kind != "materialize" and self._root is not None:
                self._root.add([resolution.key.digest])
            self._resolutions[node.id] = resolution, reason
        return self._resolutions[node.id]

    def _hit(self, node: Node, resolution: Resolution, reason: str) -> None:
        if resolution.action is not None:
            self._resolver.settle(node, resolution.action.outputs)
        result = self._end(node, "hit", reason, resolution)
        if resolution.action is not None:
            result.outputs, result.facts = resolution.action.outputs, resolution.action.facts

    def _start(self, node: Node, resolution: Resolution, reason: str) -> bool:
        memory = estimate(node, list(self._nodes.values()), self._source)[1]
        used = sum(running.memory for running in self._running.values())
        if self._running and used + memory > self._memory_limit:
            return False
        heavy = resolution.key is None or bool(_HEAVY & resolution.key.tools.keys())
        worker = self._pool.idle(lambda worker: heavy or resident(worker.pid) < _REUSE_BELOW)
        if worker is None:
            return False
        lock = None
        if node.kind != "materialize" and resolution.key is not None:
            lock = self._store.try_lock(resolution.key.digest)
            if lock is None:
                if node.id not in self._announced:
                    self._announced.add(node.id)
                    self._emit("node_waiting", node, reason=f"{self._maker(resolution.key)} is making it")
                self._waiting.add(node.id)
                return False
            if not self._force and self._store.get_action(resolution.key.digest) is not None:
                lock.release()  # Another run made it in the meantime.
                del self._resolutions[node.id]
                return True
        self._running[worker] = _Running(node, resolution, reason, lock, memory, time.perf_counter())
        self._memory.begin(worker.pid)
        self._emit("node_started", node, reason=reason, expected_seconds=self._teller.begin(node.id))
        worker.send(self._job(node, resolution))
        return True

    def _maker(self, key: Key) -> str:
        """Name who makes a result: a node of another variant with the same key, or a process that is not ours."""
        running = self._running.values()
        return next((other.node.id for other in running if other.resolution.key == key), "another run")

    def _job(self, node: Node, resolution: Resolution) -> Job:
        common: dict[str, Any] = {
            "node": node.id,
            "kind": node.kind,
            "component": node.component,
            "store": str(self._store.root),
            "log": str(self._store.log_path(self._run_id, node.id)),
        }
        if node.kind == "assets":
            files = {relative: str(path) for relative, path in self._source.extras.items()}
            assets = {
                "index": dict(self._source.index),
                "files": files,
                "tokens": self._additions.tokens(self._source),
            }
            return Job(**common, assets=assets)
        if node.kind == "load":
            return Job(**common, checkpoint=checkpoint_input(self._source.checkpoint(node.component)))
        facets = self._resolver.facets(node) or {}
        read = [digest for name, digest in facets.items() if name.rpartition(".")[2] == "weights"]
        tables = {digest: self._resolver.bound_weights(digest) for digest in read}
        digests = self._resolver.file_digests(node.component) if read else {}
        common |= {
            "facets": facets,
            "inline": {digest: table.to_bytes().decode() for digest, table in tables.items() if table},
            "stamps": self._resolver.stamps(node),
            "files": {digest: str(path) for path, digest in digests.items()},
        }
        if node.kind == "tokenizer":
            return Job(**common)
        if node.step is None:
            return Job(**common, folder=str(self._staging[node.id]), options=node.file_names)
        entry = self._workflow.registry.get(node.step.pass_name)
        reads = node.step.instance.reads
        return Job(
            **common,
            pass_name=entry.name,
            plugin=entry.plugin,
            rule_plugins=entry.rule_plugins,
            code=resolution.key.maker if resolution.key is not None else "",
            options=node.step.instance.model_dump(mode="json"),
            target=self._workflow.workflow.target.lowering() if "target" in reads else None,
            precision=asdict(node.step.precision) if node.step.precision is not None else None,
            loras=lora_inputs(self._additions, node.component) if "loras" in reads else [],
            embeddings=embedding_inputs(self._additions, node.component) if "embeddings" in reads else [],
        )

    def _receive(self) -> None:
        try:
            answer = self._pool.answers.get(timeout=_POLL_SECONDS if self._waiting else _TELL_SECONDS)
        except queue.Empty:
            return
        running = self._running.get(answer.worker)
        if running is None:
            return
        if answer.kind == "progress":
            self._emit("node_progress", running.node, **answer.data)
            return
        del self._running[answer.worker]
        answer.worker.job = None
        try:
            if answer.kind == "done":
                self._finish(running, answer)
            else:
                self._fail(running, answer)
        finally:
            _release(running)
        if answer.kind == "died":
            self._pool.drop(answer.worker)

    def _finish(self, running: _Running, answer: Answer) -> None:
        ended = time.perf_counter()
        node, key = running.node, running.resolution.key
        done = answer.data
        peak = self._memory.peak_of(answer.worker.pid)
        if node.kind != "materialize":
            if key is not None:
                created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
                self._store.put_action(
                    Action(
                        key.digest, key.inputs(), done["outputs"], done["parts"], done["facts"],
                        done["seconds"], peak, created,
                    )
                )  # fmt: skip
            self._resolver.settle(node, done["outputs"])
        result = self._end(node, "executed", running.reason, running.resolution, emit=False)
        result.outputs, result.facts = done["outputs"], done["facts"]
        result.seconds, result.peak_memory_bytes = done["seconds"], peak
        result.memory_before_bytes = done["memory_before_bytes"]
        # Counted from its end: a new worker takes a while to come up before it begins.
        result.start_seconds = max(running.started, ended - result.seconds) - self._began
        costs = {"peak_memory_bytes": peak, "memory_before_bytes": result.memory_before_bytes}
        self._emit("node_finished", node, seconds=round(result.seconds, 3), **costs)

    def _fail(self, running: _Running, answer: Answer) -> None:
        if answer.data.get("error") == DamagedError.word:
            raise DamagedError(answer.data["message"])
        log = str(self._store.log_path(self._run_id, running.node.id))
        result = self._end(running.node, "failed", running.reason, running.resolution, emit=False)
        result.error = answer.data["message"] if answer.kind == "failed" else _death(answer.data["status"])
        result.log = log
        result.start_seconds = running.started - self._began
        result.seconds = time.perf_counter() - running.started
        result.peak_memory_bytes = self._memory.peak_of(answer.worker.pid)
        result.memory_before_bytes = answer.data.get("memory_before_bytes", 0)
        result.facts = {
            **answer.data.get("facts", {}),
            "error_kind": answer.data.get("error", PassError.word),
        }
        self._emit("node_failed", running.node, error=result.error, log=log)

    def _end(
        self, node: Node, status: Status, reason: str, resolution: Resolution | None, *, emit: bool = True
    ) -> NodeResult:
        key = resolution.key if resolution is not None else None
        result = NodeResult(node.id, node.component, node.name, status, reason)
        if key is not None:
            result.key, result.inputs = key.digest, key.inputs()
        self._results[node.id] = result
        if emit:
            self._emit("node_hit" if status == "hit" else "node_skipped", node, reason=reason)
        return result

    def _emit(self, name: EventName, node: Node, **data: Any) -> None:
        self._listener(Event(name, {"node": node.id, **data}))


def _release(running: _Running) -> None:
    if running.lock is not None:
        running.lock.release()


def _death(status: int) -> str:
    if status < 0:
        hint = "; out of memory is the usual reason: try --workers 1" if status == -9 else ""
        return f"its process was killed by signal {-status}{hint}"
    return f"its process ended with status {status}"
