"""One run of a workflow: execute what is not stored, publish what changed, keep the record."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from olivelike._extras import needed
from olivelike._text import listed
from olivelike.engine.execute.events import Event, Listener
from olivelike.engine.execute.sharing import Unshared, open_sharing
from olivelike.engine.keys import output_lock
from olivelike.engine.output.admission import check_output, check_room
from olivelike.engine.output.assemble import Stagings, assets_are_current, publish_output
from olivelike.engine.output.assets import check_tokenizers
from olivelike.engine.output.output_files import resolved
from olivelike.engine.output.publication import recover
from olivelike.engine.plan.planner import all_hits, explain_status
from olivelike.engine.preparation import (
    forecast,
    make_resolver,
    memory_limit,
    plan_prepared,
    prepare,
    warnings_of,
    worker_count,
)
from olivelike.engine.prepared import DEFAULTS, Options, Prepared
from olivelike.engine.run_result import RunResult, run_record
from olivelike.errors import (
    DamagedError,
    Interrupted,
    MissingError,
    OlivelikeError,
    PassError,
    StoreError,
    UsageError,
    error_of,
)
from olivelike.model.components import PIPELINE
from olivelike.model.records.output import JOURNAL_FILE
from olivelike.store import Root, new_run_id

if TYPE_CHECKING:
    from olivelike.engine.execute.driver import Driver, Execution
    from olivelike.engine.execute.executor import Executor, ExecutorMaker
    from olivelike.engine.plan.resolver import Resolution, Resolver
    from olivelike.model.records.run_record import NodeRecord, RunRecord
    from olivelike.workflow import Output
    from olivelike.workflow.places import Place

ReportWriter: TypeAlias = "Callable[[RunRecord, Path], Path]"
ATTEMPTS = 3
"""How often a run starts over when it finds stored objects damaged."""

_SHOWN = 5
"""Most things that a message names."""


def run(
    ref: str | Path | Place,
    options: Options = DEFAULTS,
    listener: Listener = lambda _: None,
    report: ReportWriter | None = None,
    executor: ExecutorMaker | None = None,
    *,
    alone: bool = True,
) -> RunResult:
    """Run a workflow: execute what is not stored, publish what changed.

    Args:
        ref: Path of a workflow file, name of a shipped one, or a place that brings its own text.
        options: What the front end asks for.
        listener: Receives every event.
        report: Writes a report of the run's record into a folder, as `olivelike.measure.report.write_report`.
        executor: What runs the tasks; by default worker processes.
        alone: Collect the store's garbage at the end.

    Returns:
        The result of a run in which every node succeeded.

    Raises:
        OlivelikeError: what went wrong, with place and remedy; outputs are as before or complete.
    """
    start = time.perf_counter()
    prepared = prepare(ref, options, writes=True)
    return _Run(prepared, listener, report, executor, start, alone=alone).run()


def make_executor(options: Options, make: ExecutorMaker | None, log: Path) -> Executor:
    """Return what runs the tasks of a run: what is asked for, a cluster, or worker processes here.

    Raises `MissingError` if the cluster can't be reached, or the extra for it is not here, and `UsageError` if it has
    no address.
    """
    if make is None and options.cluster is not None:
        executor: Executor = needed("EXECUTORS", "tasks", "--cluster")(options.cluster, options.workers, log)
        return executor
    from olivelike.engine.execute import process_executor

    return (make or process_executor.ProcessExecutor)(worker_count(options), log)


class _Run:
    def __init__(
        self,
        prepared: Prepared,
        listener: Listener,
        report: ReportWriter | None,
        executor: ExecutorMaker | None,
        start: float,
        *,
        alone: bool,
    ) -> None:
        self._prepared = prepared
        self._options = prepared.options
        self._store = prepared.store
        self._listener = listener
        self._write_report = report
        self._start, self._alone = start, alone
        self._id = new_run_id()
        self._make_executor = executor
        self._driver: Driver | None = None
        self._sharing = Unshared()
        self._has_ended = False
        # With `until`, nothing is published.
        self._outputs = () if self._options.until is not None else prepared.outputs

    def run(self) -> RunResult:
        loaded = self._prepared.workflow.workflow
        node_ids = [node.id for node in self._prepared.nodes]
        shared = None if self._prepared.shared is None else str(self._prepared.shared)
        self._emit(
            "run_started", workflow=loaded.name, run_id=self._id, nodes=len(node_ids), node_ids=node_ids, shared=shared
        )
        for warning in warnings_of(self._prepared):
            self._emit("warning", message=warning)
        if (few_steps := self._prepared.source.few_steps) is not None:
            scheduler = few_steps.recipe.class_name
            self._emit("warning", message=f"this is {few_steps}; its scheduler is {scheduler}")
        try:
            for output in self._outputs:
                check_output(self._prepared, output)
            if self._is_up_to_date():
                return self._finish("ok", None)
            if not self._store.writable:
                self._check_is_stored()
            check_tokenizers(self._prepared.source)
            with contextlib.ExitStack() as stack:
                self._take_outputs(stack)
                root = stack.enter_context(self._store.live_run(self._id)) if self._store.writable else None
                stagings = stack.enter_context(Stagings(self._prepared, self._outputs))
                self._sharing = stack.enter_context(self._shared())
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
        finally:
            if not self._has_ended:  # A bug ends it, ours or that of a listener.
                self._finish("failed", self._so_far(), f"a bug: {type(sys.exception()).__name__}")

    @contextlib.contextmanager
    def _shared(self) -> Iterator[Unshared]:
        """Lend the shared store: that of several runs, or one of this run, which ends with it."""
        if self._options.sharing is not None:
            yield self._options.sharing
            return
        sharing = open_sharing(self._prepared.shared, self._store, self._listener, self._id)
        done = False
        try:
            yield sharing
            done = True
        finally:
            sharing.close(hurry=not done)

    def _so_far(self) -> Execution | None:
        return self._driver.execution if self._driver is not None else None

    def _is_up_to_date(self) -> bool:
        if any((output.path / JOURNAL_FILE).exists() for output in self._outputs):
            return False
        if self._options.clean_cache:
            return False
        nodes = self._prepared.nodes
        try:
            hits = all_hits(nodes, make_resolver(self._prepared))
            if hits is None or not all(self._has_assets(output, hits) for output in self._outputs):
                return False
        except DamagedError:
            return False
        for node in nodes:
            self._emit("node_hit", node=node.id, reason=explain_status(node, hits[node.id], self._prepared.history)[1])
        for output in self._outputs:
            self._emit("output_unchanged", path=str(output.path))
        return True

    def _has_assets(self, output: Output, hits: Mapping[str, Resolution]) -> bool:
        action = hits[f"{PIPELINE}.assets"].action
        return action is not None and assets_are_current(self._prepared, action.outputs["assets"], output)

    def _check_is_stored(self) -> None:
        """Refuse a run that would have to store something where nothing can be stored.

        Raises `StoreError` naming what is missing.
        """
        nodes = plan_prepared(self._prepared, here=True).nodes
        missing = [planned.node.id for planned in nodes if planned.status != "hit" and planned.node.output is None]
        if missing or self._options.clean_cache:
            what = f"lacks {listed(missing, _SHOWN)}" if missing else "can't be cleaned"
            raise StoreError(
                f"the store {self._store.root} is read-only and {what}; make it writable, or put the store elsewhere "
                "with --cache-dir"
            )

    def _take_outputs(self, stack: contextlib.ExitStack) -> None:
        """Lock the output folders against other runs, in one order for all; look at them once more."""
        # However it is spelled, or reached through links, one folder has one lock. A read-only store has no locks.
        folders = {str(resolved(output.path)).casefold(): str(output.path) for output in self._outputs}
        for folder, path in sorted(folders.items()) if self._store.writable else ():

            def waiting(path: str = path) -> None:
                self._emit("warning", message=f"waiting for another run that writes {path}")

            stack.enter_context(self._store.lock(output_lock(folder), waiting))
        for output in self._outputs:
            recover(output.path, overwrite=self._options.overwrite)
            check_output(self._prepared, output)
            check_room(self._prepared, output)

    def _execute_and_publish(self, stagings: Stagings, root: Root | None) -> Execution:
        """Execute and publish; what turns out damaged in the store is set aside, and all starts over."""
        for attempt in range(ATTEMPTS):
            stagings.renew()
            resolver = make_resolver(self._prepared)
            resolver.inputs.prefetch()
            try:
                execution = self._execute(resolver, stagings, root, force=attempt == 0)
                self._publish(execution, resolver, stagings)
            except DamagedError as error:
                if attempt == ATTEMPTS - 1 or not self._store.writable:
                    raise
                self._emit("warning", message=f"{error}; checking the store and starting over")
                self._store.verify(repair=True)
            else:
                return execution
        raise AssertionError

    def _execute(self, resolver: Resolver, stagings: Stagings, root: Root | None, *, force: bool) -> Execution:
        from olivelike.engine.execute.driver import Driver, Settings

        prepared, options = self._prepared, self._options
        settings = Settings(
            run_id=self._id,
            nodes=prepared.nodes,
            staging=stagings.folders,
            history=prepared.history,
            forecast=forecast(prepared),
            listener=self._listener,
            memory_limit=memory_limit(options),
            root=root,
            began=self._start,
            sharing=self._sharing,
            force=options.clean_cache and force,
            fail_fast=options.fail_fast,
            step_timeout=options.step_timeout,
        )
        executor = make_executor(options, self._make_executor, self._store.log_path(self._id, "workers"))
        self._driver = Driver(settings, resolver, executor)
        return self._driver.run()

    def _publish(self, execution: Execution, resolver: Resolver, stagings: Stagings) -> None:
        failed = any(result.status in {"failed", "skipped"} for result in execution.results.values())
        for output in self._outputs:
            if failed and not (self._options.keep_going and self._is_complete(output, execution)):
                continue
            kept = publish_output(self._prepared, resolver, execution, output, stagings)
            if kept:
                names = ", ".join(kept)
                self._emit("warning", message=f"left in {output.path}, since they were changed: {names}")
            self._emit("output_unchanged" if kept is None else "output_published", path=str(output.path))

    def _is_complete(self, output: Output, execution: Execution) -> bool:
        nodes = [
            node
            for node in self._prepared.nodes
            if node.output == output or (node.component == PIPELINE and node.output is None)
        ]
        return all(execution.results[node.id].status in {"hit", "shelf", "executed"} for node in nodes)

    def _finish(self, status: str, execution: Execution | None, error: str | None = None) -> RunResult:
        self._has_ended = True
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
            sum(r.status == "shelf" for r in results),
        )
        try:
            if not up_to_date:
                result = replace(result, report=self._keep(result, results, error))
        finally:
            self._emit("run_finished", **result.to_json())
        return result

    def _keep(self, result: RunResult, nodes: Sequence[NodeRecord], error: str | None) -> Path | None:
        """Keep the record, and write the report; without room for them a run goes on all the same."""
        if not self._store.writable:
            if result.status == "ok":  # An error names them.
                self._store.drop_temporary_logs()
            self._emit("warning", message="the store is read-only: no record of this run was kept, and no report")
            return None
        record = run_record(self._prepared, result, nodes, error)
        collect = (self._store.gc,) if self._alone else ()
        for keep in (lambda: self._store.put_run(record.to_json()), *collect):
            try:
                keep()
            except StoreError as failure:  # A full disk is what the run may be failing of.
                self._emit("warning", message=f"after the run: {failure}")
        if self._write_report is None:
            return None
        try:
            return self._write_report(record, self._store.run_folder(self._id))
        except (OSError, StoreError) as failure:
            self._emit("warning", message=f"the report was not written: {failure}")
            return None

    def _emit(self, name: Any, **data: Any) -> None:
        self._listener(Event(name, data))


def _failure(failed: Sequence[NodeRecord]) -> OlivelikeError:
    """Return the error of a run with failed nodes: of the gravest kind, what is missing before what went wrong."""
    lines = [f"{result.id} failed: {result.error}\n  log: {result.log}" for result in failed]
    kinds = [error_of(str(result.facts["error_kind"])) for result in failed]
    return min(kinds, key=_gravity)("\n".join(lines))


def gravest(errors: Sequence[OlivelikeError]) -> type[OlivelikeError]:
    """Return the kind that stands for several errors."""
    return min(map(type, errors), key=_gravity)


def _gravity(kind: type[OlivelikeError]) -> int:
    order = (StoreError, MissingError, UsageError, PassError)
    return next((place for place, root in enumerate(order) if issubclass(kind, root)), len(order))
