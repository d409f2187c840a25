"""Bars that are drawn while nodes run: a line for the whole run, and one for each node that runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from olivelike._text import duration, size
from olivelike.cli.display.text import expected, usually

if TYPE_CHECKING:
    from rich.console import Console

_MATERIALIZE = "materialize"
"""The step whose progress counts bytes."""
_WIDE = 110
"""Columns from which on there is room for long bars."""


class Bars:
    """Lines that are drawn over while nodes run; what is printed meanwhile appears above them."""

    def __init__(self, workflow: str, console: Console | None = None) -> None:
        bar = BarColumn(bar_width=24)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            bar,
            _Amount(),
            console=console,
            transient=True,
        )
        if self._progress.console.width < _WIDE:
            bar.bar_width = 10
        self._tasks: dict[str, TaskID] = {}
        self._run = self._progress.add_task(workflow, total=None, run=True)
        self._progress.start()

    def run(self, done: int, total: int, seconds_left: float | None, unknown_nodes: int) -> None:
        """Show how far the whole run is."""
        ends = None if seconds_left is None else time.monotonic() + seconds_left
        self._progress.update(self._run, completed=done, total=total, ends=ends, unknown=unknown_nodes)

    def start(self, node: str, expected_seconds: float | None = None) -> None:
        """Add a line for a node."""
        self._tasks[node] = self._progress.add_task(node, total=None, expected=expected_seconds)

    def update(self, node: str, done: int, total: int, note: str = "") -> None:
        """Show how far a node is, and what is at work there."""
        if node in self._tasks:
            self._progress.update(self._tasks[node], completed=done, total=total, note=note)

    def end(self, node: str) -> None:
        """Take a node's line away."""
        task = self._tasks.pop(node, None)
        if task is not None:
            self._progress.remove_task(task)

    def stop(self) -> None:
        """Take all lines away."""
        self._progress.stop()


class _Amount(ProgressColumn):
    """Progress of a line, and the time that it still takes, as far as that is known."""

    def render(self, task: Task) -> Text:
        return Text(_of_run(task) if task.fields.get("run") else _of_node(task))


def _of_run(task: Task) -> str:
    if not task.total:
        return ""
    told, ends, unknown = "", task.fields.get("ends"), task.fields.get("unknown", 0)
    if ends is not None:
        left = ends - time.monotonic()
        told = f", {expected(left, unknown)} left" if left > 0 else ", longer than usual"
    return f"{task.completed:.0f} of {task.total:.0f} nodes{told}"


def _of_node(task: Task) -> str:
    elapsed, usual = duration(task.elapsed or 0), task.fields.get("expected")
    if not task.total:
        return elapsed if usual is None else f"{elapsed} of {usually(usual)}"
    parts = [task.fields.get("note") or f"{task.percentage:.0f} %"]
    if _MATERIALIZE in task.description.partition("@")[0].split("."):
        parts.insert(0, f"{size(task.completed)} of {size(task.total)}")
    left = task.time_remaining
    parts.append(elapsed if left is None else f"{duration(left)} left")
    return ", ".join(parts)
