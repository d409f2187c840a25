"""One line per running node: what it does, how far it is, and how long it still takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from olivelike.cli.text import duration, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

_MATERIALIZE = "materialize"
"""The step whose progress counts bytes."""


class Bars:
    """Lines that are drawn over while nodes run; what is printed meanwhile appears above them."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            _Amount(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def start(self, node: str) -> None:
        """Add a line for a node."""
        self._tasks[node] = self._progress.add_task(node, total=None)

    def update(self, node: str, done: int, total: int) -> None:
        """Show how far a node is."""
        if node in self._tasks:
            self._progress.update(self._tasks[node], completed=done, total=total)

    def end(self, node: str) -> None:
        """Take a node's line away."""
        task = self._tasks.pop(node, None)
        if task is not None:
            self._progress.remove_task(task)

    def stop(self) -> None:
        """Take all lines away."""
        self._progress.stop()


class _Amount(ProgressColumn):
    """Bytes or percentage, and time left; only the time so far where a node reports nothing."""

    def render(self, task: Task) -> Text:
        elapsed = duration(task.elapsed or 0)
        if not task.total:
            return Text(elapsed)
        parts = [f"{task.percentage:.0f} %"]
        if _MATERIALIZE in task.description.split("."):
            parts.insert(0, f"{size(task.completed)} of {size(task.total)}")
        left = task.time_remaining
        parts.append(elapsed if left is None else f"{duration(left)} left")
        return Text(", ".join(parts))
