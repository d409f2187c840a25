"""What a person sees of a run: a line per finished node, bars while nodes run, and a summary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from olivelike.cli.stdout import write_error, write_line
from olivelike.cli.text import count, duration, size
from olivelike.workflow.findings import file_label

if TYPE_CHECKING:
    from types import TracebackType

    from olivelike.cli.bars import Bars
    from olivelike.engine import RunResult
    from olivelike.executor.events import Event


class RunDisplay:
    """A listener that writes lines to standard output, with bars under them on a terminal."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._bars: Bars | None = None
        self._workflow = ""
        self._width = 26  # `safety_checker.materialize`
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._counts[event.name] += 1
        data = event.data
        match event.name:
            case "run_started":
                self._workflow = data["workflow"]
            case "warning":
                write_error(f"warning: {data['message']}")
            case "node_waiting":
                write_line(f"{data['node']} waits: {data['reason']}")
            case "node_started":
                self._start(data)
            case "node_progress" if self._bars is not None:
                self._bars.update(data["node"], data["done"], data["total"])
            case "node_finished" | "node_failed":
                self._end(data)
            case "run_finished" if data["report"] is not None:
                self._show_report(data["report"])

    def summarise(self, result: RunResult) -> None:
        """Write the last line of a run that succeeded."""
        if self._bars is not None:
            self._bars.stop()
        outputs = " and ".join(file_label(path) for path in result.outputs)
        stored = f"{result.hits} of {count(result.nodes, 'node')} stored, {duration(result.seconds)}"
        if result.executed:
            ran = f"{result.executed} of {count(result.nodes, 'node')} ran in {duration(result.seconds)}"
            if result.hits:
                ran += f", {result.hits} {'was' if result.hits == 1 else 'were'} stored"
            wrote = f"; wrote {outputs}" if outputs else ""
            write_line(f"{self._workflow}: {ran}, peak memory {size(result.peak_memory_bytes)}{wrote}")
        elif self._counts["output_published"]:
            write_line(f"{self._workflow}: no node ran, {outputs} was brought up to date ({stored})")
        else:
            state = f", {outputs} {'is' if len(result.outputs) == 1 else 'are'} up to date" if outputs else ""
            write_line(f"{self._workflow}: nothing to do{state} ({stored})")

    def _show_report(self, path: str) -> None:
        if self._bars is not None:
            self._bars.stop()
        write_line(f"report: {file_label(Path(path))}")

    def _start(self, data: dict[str, Any]) -> None:
        self._width = max(self._width, len(data["node"]))
        if not self._live:
            return
        if self._bars is None:
            from olivelike.cli.bars import Bars

            self._bars = Bars()
        self._bars.start(data["node"])

    def _end(self, data: dict[str, Any]) -> None:
        node = data["node"]
        if self._bars is not None:
            self._bars.end(node)
        if "error" in data:
            first = data["error"].partition("\n")[0]
            write_line(f"{node:<{self._width}}  failed: {first}")
        else:
            memory = size(data["peak_memory_bytes"])
            write_line(f"{node:<{self._width}}  {duration(data['seconds']):>11}  {memory:>9}")
