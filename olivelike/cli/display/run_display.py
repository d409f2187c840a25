"""Display of a plan and of a run: a line per node, with bars or a word now and then; programs get JSON."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from olivelike._table import Table
from olivelike._text import count, duration, roughly, size
from olivelike.cli import receipt
from olivelike.cli.display.text import ended, expected, fitted, message, terminal_width, usually
from olivelike.cli.stdout import write_error, write_found, write_json, write_line
from olivelike.workflow.findings import file_label
from olivelike.workflow.matrix import UnnamedCombinationError

if TYPE_CHECKING:
    from olivelike._untrusted import Json, JsonView
    from olivelike.cli.display.bars import Bars
    from olivelike.engine.execute.events import Event
    from olivelike.engine.plan.planner import Plan, PlannedNode
    from olivelike.engine.prepared import Options
    from olivelike.engine.run_result import RunResult
    from olivelike.workflow.places import Place

_KNOWN = ("hit", "shelf")
"""Statuses of nodes that do not run."""
_STATUSES = ("hit", "shelf", "miss", "pending", "uncached")
_WIDE = 100
"""Columns of a terminal from which on bytes and memory of each node are shown too."""


def show_plan(workflow: str | Place, options: Options, json: bool) -> None:
    """Plan a workflow and write the plan to standard output."""
    from olivelike.engine.plan.forecast import TimeLeft
    from olivelike.engine.preparation import forecast as forecast_of, plan

    try:
        prepared, found = plan(workflow, options)
    except UnnamedCombinationError:
        from olivelike.cli.display.fleet_display import show_fleet_plan

        show_fleet_plan(workflow, options, json)
        return
    name = prepared.workflow.workflow.name
    runs = _to_run(found)
    forecast = forecast_of(prepared) if runs else None
    seconds = {planned.node.id: forecast.seconds(planned.node.id) for planned in runs} if forecast else {}
    totals = _totals(found) | (forecast.left(seconds) if forecast else TimeLeft(0.0, 0)).to_json()
    value = {
        "workflow": name,
        "file": str(prepared.workflow.path),
        "cache_dir": str(prepared.store.root),
        "outputs": [str(output.path) for output in prepared.outputs],
        "totals": totals,
        "nodes": [{**planned.to_json(), "expected_seconds": seconds.get(planned.node.id)} for planned in found.nodes],
    }
    for warning in found.warnings:
        write_error(f"warning: {warning}")
    write_found(value, map(fitted, _lines(name, found, totals, seconds)), json=json)


def _totals(plan: Plan) -> Json:
    runs = _to_run(plan)
    return {
        "nodes": len(plan.nodes),
        **{status: sum(planned.status == status for planned in plan.nodes) for status in _STATUSES},
        "write_bytes": sum(planned.write_bytes for planned in runs),
        "largest_memory_bytes": max((planned.memory_bytes for planned in runs), default=0),
    }


def _to_run(plan: Plan) -> list[PlannedNode]:
    return [planned for planned in plan.nodes if planned.status not in _KNOWN]


def _lines(name: str, plan: Plan, totals: Json, seconds: Mapping[str, float | None]) -> list[str]:
    narrow = (terminal_width() or _WIDE) < _WIDE
    header = ("node", "status", "time", *(() if narrow else ("writes", "memory")), "why")
    rows = []
    for planned in plan.nodes:
        usual = seconds.get(planned.node.id)
        cost = ["?" if usual is None else duration(usual)]
        if not narrow:
            cost += [size(planned.write_bytes), size(planned.memory_bytes)]
        if planned.status in _KNOWN:
            cost = [""] * len(cost)
        rows.append((planned.node.id, planned.status, *cost, planned.reason))
    if totals["hit"] == totals["nodes"]:
        last = f"{name}: nothing to run, all of {count(totals['nodes'], 'node')} stored"
    else:
        found = ", ".join(f"{totals[status]} {status}" for status in _STATUSES if totals[status])
        last = (
            f"{name}: {count(totals['nodes'], 'node')}: {found}; "
            f"{expected(totals['seconds_left'], totals['unknown_nodes'])}, about {size(totals['write_bytes'])} to "
            f"write, {size(totals['largest_memory_bytes'])} of memory for the largest node"
        )
    return [*Table(header, rows, right=range(2, len(header) - 1)).lines(), "", last]


_LONG = 10.0
"""Seconds from which on a node is announced where there is no terminal."""
_PAUSE = 30.0
"""Seconds, at least, between two words about a node that runs."""


def show_run(workflow: str | Place, options: Options, json: bool, most: int | None = None) -> None:
    """Run a workflow, show what happens as lines or as JSON, and write the report.

    Of a workflow with a matrix, run all combinations, so many at once at most.
    """
    with contextlib.suppress(UnnamedCombinationError):
        _show_one(workflow, options, json)
        return
    from olivelike.cli.display.fleet_display import show_fleet

    show_fleet(workflow, options, json, most)


def _show_one(workflow: str | Place, options: Options, json: bool) -> None:
    from olivelike.engine.run import run
    from olivelike.measure.report import write_report

    if json:
        with JsonLines() as lines:
            run(workflow, options, lines, write_report)
        return
    with RunDisplay(live=sys.stdout.isatty(), fail_fast=options.fail_fast) as display:
        display.summarise(run(workflow, options, display, write_report))


class RunDisplay:
    """A listener that writes lines to standard output, with bars under them on a terminal."""

    def __init__(self, *, live: bool, fail_fast: bool = False) -> None:
        """Set up; with `fail_fast` an error comes right behind the line of the node that failed, and is told once."""
        self._live, self._fail_fast = live, fail_fast
        self._bars: Bars | None = None
        self._workflow = ""
        self._nodes: list[str] = []
        self._shared: str | None = None
        self._ended: set[str] = set()
        self._expected: dict[str, float | None] = {}
        self._next: dict[str, float] = {}
        """Moment to say again that a node runs, in seconds since it began."""
        self._at: dict[str, Json] = {}
        """Last word of each node on how far it is."""
        self._early: list[tuple[str, str]] | None = []
        """Lines that wait for the first, which says how much is to be done."""
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._counts[event.name] += 1
        data = event.data
        match event.name:
            case "run_started":
                self._workflow, self._nodes = data["workflow"], data["node_ids"]
                self._shared = data.get("shared")
            case "run_progress":
                self._progress(data)
            case "warning":
                write_error(f"warning: {data['message']}")
            case "shared_store":
                write_line(_traffic(data))
            case "node_waiting":
                write_line(f"{data['node']} waits: {data['reason']}")
            case "node_started":
                self._start(data)
            case "node_progress" if self._bars is not None:
                self._bars.update(data["node"], data["done"], data["total"], data["note"])
            case "node_progress":
                self._at[data["node"]] = data
            case "node_running" if not self._live:
                self._tell(data["node"], data["seconds"])
            case "node_hit" | "node_shelved" | "node_skipped":
                self._ended.add(data["node"])
            case "node_finished" | "node_failed":
                self._end(data)
            case "run_finished" if data["report"] is not None:
                self._show_report(data["report"])

    def summarise(self, result: RunResult) -> None:
        """Write the last line of a run that succeeded."""
        if self._bars is not None:
            self._bars.stop()
        outputs = " and ".join(file_label(path) for path in result.outputs)
        nodes, took = count(result.nodes, "node"), duration(result.seconds)
        stored = f"{result.hits} of {nodes} stored"
        if result.executed:
            ran = f"{result.executed} of {nodes} ran in {took}"
            if result.hits:
                ran += f", {result.hits} {'was' if result.hits == 1 else 'were'} stored"
            if result.shelved:
                ran += f", {result.shelved} came from the shelf"
            wrote = f"; wrote {outputs}" if outputs else ""
            write_line(f"{self._workflow}: {ran}, peak memory {size(result.peak_memory_bytes)}{wrote}")
        elif self._counts["output_published"]:
            write_line(f"{self._workflow}: no node ran, {outputs} was brought up to date ({stored}, {took})")
        else:
            state = f", {outputs} {'is' if len(result.outputs) == 1 else 'are'} up to date" if outputs else ""
            told = f"{self._workflow}: nothing to do{state} ({stored}"
            write_line(f"{told}, {took})")
            if not self._counts["warning"]:
                receipt.note_answer(told)

    def _show_report(self, path: str) -> None:
        if self._bars is not None:
            self._bars.stop()
        write_line(f"report: {file_label(Path(path))}")

    def _progress(self, data: Json) -> None:
        if self._counts["run_progress"] == 1:
            early, self._early = self._early, None
            left = expected(data["seconds_left"], data["unknown_nodes"])
            rest = data["total"] - data["done"]
            total = count(data["total"], "node")
            if self._shared is None:
                write_line(f"{self._workflow}: {rest} of {total} to run, {data['done']} known; {left}")
            else:  # It is asked node by node, as the run goes on.
                write_line(
                    f"{self._workflow}: {rest} of {total} to fetch from {self._shared} or to run, {data['done']} known "
                    f"here; {left} if all ran"
                )
            for line in early or ():
                self._row(*line)
        if self._bars is not None:
            self._bars.run(**data)

    def _start(self, data: Json) -> None:
        node, usual = data["node"], data["expected_seconds"]
        if self._live:
            if self._bars is None:
                from olivelike.cli.display.bars import Bars

                self._bars = Bars(self._workflow)
            self._bars.start(node, usual)
            return
        self._expected[node], self._next[node] = usual, _LONG
        if usual is not None and usual >= _LONG:
            self._next[node] = _PAUSE
            line = node, f"begins, {roughly(usual)}"
            if self._early is None:
                self._row(*line)
            else:
                self._early.append(line)

    def _tell(self, node: str, seconds: float) -> None:
        if seconds >= self._next[node]:
            self._next[node] = seconds + max(_PAUSE, seconds / 3)
            told, usual = self._at.get(node, {}), self._expected[node]
            parts = [f"{seconds:.0f} s so far", *([told["note"]] if told.get("note") else [])]
            if told.get("seconds_left") is not None:
                parts.append(f"{roughly(told['seconds_left'])} left")
            elif usual is not None:
                parts.append(f"usually {usually(usual)}")
            self._row(node, ", ".join(parts))

    def _end(self, data: Json) -> None:
        node = data["node"]
        self._ended.add(node)
        if self._bars is not None:
            self._bars.end(node)
        if "error" in data:
            first = data["error"].partition("\n")[0]
            self._row(node, "failed" if self._fail_fast else f"failed: {first}")
        else:
            # What is measured is the process, which may have kept what earlier nodes needed.
            memory = size(data["peak_memory_bytes"])
            self._row(node, f"{duration(data['seconds']):>11}  worker {memory:>8}")

    def _row(self, node: str, text: str) -> None:
        """Write a line about a node, behind how many nodes have ended."""
        total = len(self._nodes)
        width = max(map(len, self._nodes), default=0)
        write_line(f"{len(self._ended):>{len(str(total))}} of {total}  {node:<{width}}  {text}")


def _traffic(data: JsonView) -> str:
    """Return what was fetched from a shared store and given to it, and how fast."""
    told = []
    for way in ("fetched", "given"):
        if data[way]["results"]:
            speed = data[way]["bytes_per_second"]
            fast = "" if speed is None else f" at {size(speed)}/s"
            told.append(f"{way} {count(data[way]['results'], 'result')}, {size(data[way]['bytes'])}{fast}")
    return f"{data['address']}: {'; '.join(told)}"


class JsonLines:
    """A listener that writes each event as a line of JSON.

    `run_finished` is held back until the run has returned or raised: it comes last and carries the error. If
    the engine sent none, because the run ended before it began, it is made from what was seen.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._counts: Counter[str] = Counter()
        self._started: Json = {}
        self._finished: Json | None = None
        self._peak = 0

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if event.name == "run_finished":
            self._finished = event.data
            return
        if event.name == "run_started":
            self._started = event.data
        self._counts[event.name] += 1
        self._peak = max(self._peak, event.data.get("peak_memory_bytes", 0))
        write_json(event.to_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, UnnamedCombinationError):  # Nothing ran: all combinations will.
            return
        finished = self._finished or self._ended_early(error)
        write_json({"event": "run_finished", **finished, "error": message(error)})

    def _ended_early(self, error: BaseException | None) -> Json:
        return {
            "run_id": self._started.get("run_id"),
            "status": ended(error),
            "nodes": self._started.get("nodes", 0),
            "hits": self._counts["node_hit"],
            "executed": self._counts["node_finished"],
            "shelved": self._counts["node_shelved"],
            "seconds": round(time.perf_counter() - self._start, 3),
            "peak_memory_bytes": self._peak,
            "output": None,
            "report": None,
        }
