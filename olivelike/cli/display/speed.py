"""Steps per second, measured and shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text


class Speed:
    """Steps per second, from the end of the first to the end of the last."""

    def __init__(self) -> None:
        self.steps = 0
        self._first = self._last = 0.0

    def step(self) -> None:
        """Count a step that is done now."""
        self._last = time.monotonic()
        self._first = self._first or self._last
        self.steps += 1

    @property
    def per_second(self) -> float | None:
        """Steps per second; `None` before the second one."""
        elapsed = self._last - self._first
        return (self.steps - 1) / elapsed if self.steps > 1 and elapsed > 0 else None


def speed_column(speed: Speed) -> ProgressColumn:
    """Return what shows `3.14 it/s` in a progress bar."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        def render(self, task: Task) -> Text:  # noqa: ARG002  (rich's signature)
            rate = speed.per_second
            return Text("" if rate is None else f"{rate:.2f} it/s")

    return SpeedColumn()
