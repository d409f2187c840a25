"""One run of a workflow: execute what is not stored, publish what changed, keep the record."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from olivelike.engine.assemble import Stagings, assets_are_current, check_layout, publish_output
from olivelike.engine.preparation import prepare
from olivelike.errors import (
    DamagedError,
    Interrupted,
    OlivelikeError,
    PassError,
    PluginError,
    SourceError,
    StoreError,
    VerificationError,
)
from olivelike.executor.events import Event
from olivelike.output.publish import JOURNAL_FILE, check_is_ours, recover
from olivelike.plan import PIPELINE, all_hits, judge
from olivelike.store import new_run_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from olivelike.engine.preparation import Options, Prepared
    from olivelike.executor.events import Listener
    from olivelike.executor.executor import Execution, Executor, NodeResult
    from olivelike.plan import Resolution, Resolver
    from olivelike.store import Root
    from olivelike.workflow import Output
    from olivelike.workflow.places import Place


ATTEMPTS = 3
"""How often a run starts over when it finds stored objects damaged."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    run_id: str
    status: str
    nodes: int
    hits: int
    executed: int
    seconds: float
    peak_memory_bytes: int
    outputs: tuple[Path, ...]
    report: Path | None = None
    """The report; there is none if nothing was to be done."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, as the event `run_finished` has it."""
        paths = [str(path) for path in self.outputs]
        return {
            "run_id": self.run_id,
            "status": self.status,
            "nodes": self.nodes,
            "hits": self.hits,
            "executed": self.executed,
            "seconds": round(self.seconds, 3),
            "peak_memory_bytes": self.peak_memory_bytes,
            "output": paths[0] if len(paths) == 1 else paths,
            "report": str(self.report) if self.report is not None else None,
        }


def run(ref: str | Place, options: Options, listener: Listener) -> RunResult:
    """Run a workflow: execute what is not stored, publish what changed.

    Args:
        ref: Path of a workflow file, name of a shipped one, or a place that brings its own text.
        options: What the front end asks for.
        listener: Receives every event.

    Returns:
        The result of a run in which every node succeeded.

    Raises:
        OlivelikeError: what went wrong, with place and remedy; outputs are as before or complete.
    """
    start = time.perf_counter()
    prepared = prepare(ref, options, writes=True)
    return _Run(prepared, listener, start).run()


class _Run:
    """One run, from plan to record."""

    def __init__(self, prepared: Prepared, listener: Listener, start: float) -> None:
        self._prepared = prepared
        self._options = prepared.options
        self._store = prepared.store
        self._listener = listener
        self._start = start
        self._id = new_run_id()
        self._executor: Executor | None = None
        # With `until`, nothing is published.
        self._outputs = () if self._options.until is not None else prepared.outputs

    def run(self) -> RunResult:
        loaded = self._prepared.workflow.workflow
        node_ids = [node.id for node in self._prepared.nodes]
        self._emit(
            "run_started", workflow=loaded.name, run_id=self._id, nodes=len(node_ids), node_ids=node_ids
        )
        warning = self._prepared.source.origin.get("warning")
        if warning:
            self._emit("warning", message=warning)
        try:
            for output in self._outputs:
                check_is_ours(output.path)
                check_layout(output, only=bool(self._options.only))
            if self._is_up_to_date():
                return self._finish("ok", None)
            with contextlib.ExitStack() as stack:
                self._take_outputs(stack)
                root = stack.enter_context(self._store.live_run(self._id))
                stagings = stack.enter_context(Stagings(self._prepared, self._outputs))
                execution = self._execute_and_publish(stagings, root)
            failed = [result for result in execution.results.values() if result.status == "failed"]
            if failed:
                raise _failure(failed)
            return self._finish("ok", execution)
        except KeyboardInterrupt:
            self._store.sweep()
            self._finish("interrupted", self._so_far())
            raise Interrupted("interrupted; what was finished is stored, run again to continue") from None
        except OlivelikeError as error:
            self._finish("failed", self._so_far(), str(error))
            raise

    def _so_far(self) -> Execution | None:
        return self._executor.execution if self._executor is not None else None

    def _is_up_to_date(self) -> bool:
        if any((output.path / JOURNAL_FILE).exists() for output in self._outputs):
            return False
        if self._options.clean_cache:
            return False
        nodes = self._prepared.nodes
        try:
            hits = all_hits(nodes, self._prepared.resolver())
            if hits is None or not all(self._has_assets(output, hits) for output in self._outputs):
                return False
        except DamagedError:
            return False
        for node in nodes:
            self._emit("node_hit", node=node.id, reason=judge(node, hits[node.id], ())[1])
        for output in self._outputs:
            self._emit("output_unchanged", path=str(output.path))
        return True

    def _has_assets(self, output: Output, hits: Mapping[str, Resolution]) -> bool:
        action = hits[f"{PIPELINE}.assets"].action
        return action is not None and assets_are_current(self._prepared, action.outputs["assets"], output)

    def _take_outputs(self, stack: contextlib.ExitStack) -> None:
        """Lock the output folders against other runs, in one order for all."""
        from olivelike.digest import digest_json

        for path in sorted({str(output.path) for output in self._outputs}):

            def waiting(path: str = path) -> None:
                self._emit("warning", message=f"waiting for another run that writes {path}")

            stack.enter_context(self._store.lock(digest_json(["output-lock/1", path]), waiting))
        for output in self._outputs:
            recover(output.path)

    def _execute_and_publish(self, stagings: Stagings, root: Root) -> Execution:
        """Execute and publish; what turns out damaged in the store is set aside, and all starts over."""
        for attempt in range(ATTEMPTS):
            stagings.renew()
            resolver = self._prepared.resolver()
            resolver.prefetch()
            try:
                execution = self._execute(resolver, stagings, root, force=attempt == 0)
                self._publish(execution, resolver, stagings)
            except DamagedError as error:
                if attempt == ATTEMPTS - 1:
                    raise
                self._emit("warning", message=f"{error}; checking the store and starting over")
                self._store.verify(repair=True)
            else:
                return execution
        raise AssertionError

    def _execute(self, resolver: Resolver, stagings: Stagings, root: Root, *, force: bool) -> Execution:
        from olivelike.executor.executor import Executor

        prepared, options = self._prepared, self._options
        self._executor = Executor(
            prepared.nodes,
            prepared.workflow,
            prepared.source,
            prepared.additions,
            self._store,
            resolver,
            run_id=self._id,
            staging=stagings.folders,
            history=prepared.history,
            workers=prepared.workers(),
            memory_limit=prepared.memory_limit(),
            forecast=prepared.forecast(),
            listener=self._listener,
            root=root,
            force=options.clean_cache and force,
            fail_fast=options.fail_fast,
        )
        return self._executor.run()

    def _publish(self, execution: Execution, resolver: Resolver, stagings: Stagings) -> None:
        failed = any(result.status in {"failed", "skipped"} for result in execution.results.values())
        for output in self._outputs:
            if failed and not (self._options.keep_going and self._is_complete(output, execution)):
                continue
            changed = publish_output(self._prepared, resolver, execution, output, stagings)
            self._emit("output_published" if changed else "output_unchanged", path=str(output.path))

    def _is_complete(self, output: Output, execution: Execution) -> bool:
        nodes = [node for node in self._prepared.nodes if node.output == output or node.kind == "assets"]
        return all(execution.results[node.id].status in {"hit", "executed"} for node in nodes)

    def _finish(self, status: str, execution: Execution | None, error: str | None = None) -> RunResult:
        results = list(execution.results.values()) if execution else []
        total = len(self._prepared.nodes)
        up_to_date = status == "ok" and execution is None
        result = RunResult(
            self._id,
            status,
            total,
            total if up_to_date else sum(r.status == "hit" for r in results),
            sum(r.status == "executed" for r in results),
            time.perf_counter() - self._start,
            execution.peak_memory_bytes if execution else 0,
            tuple(output.path for output in self._outputs),
        )
        if not up_to_date:
            result = replace(result, report=self._keep(result, results, error))
        self._emit("run_finished", **result.to_json())
        return result

    def _keep(self, result: RunResult, nodes: Sequence[NodeResult], error: str | None) -> Path | None:
        """Keep the record, and write the report; without room for them a run goes on all the same."""
        from olivelike.engine.record import run_record
        from olivelike.report import write_report

        record = run_record(self._prepared, result, nodes, error)
        with contextlib.suppress(StoreError):  # A full disk is what the run may be failing of.
            self._store.put_run(record)
            self._store.gc()
        try:
            return write_report(record, self._store.run_folder(self._id))
        except (OSError, StoreError) as failure:
            self._emit("warning", message=f"the report was not written: {failure}")
            return None

    def _emit(self, name: Any, **data: Any) -> None:
        self._listener(Event(name, data))


def _failure(failed: Sequence[NodeResult]) -> OlivelikeError:
    """Return the error of a run with failed nodes: of the gravest kind, what is missing before what went wrong."""
    kinds: dict[str, type[OlivelikeError]] = {
        "store": StoreError, "source": SourceError, "plugin": PluginError, "pass": PassError,
        "verification": VerificationError,
    }  # fmt: skip
    lines = [f"{result.id} failed: {result.error}\n  log: {result.log}" for result in failed]
    found = {result.facts["error_kind"] for result in failed}
    return next(error for kind, error in kinds.items() if kind in found)("\n".join(lines))
