"""What `olivelike generate` tells people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self

from olivelike.cli.speed import Speed, speed_column
from olivelike.cli.stdout import write_error, write_line
from olivelike.cli.text import count, duration

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from rich.progress import Progress, TaskID

    from olivelike.runtime.denoising import Step
    from olivelike.runtime.pipeline import Pipeline
    from olivelike.runtime.request import Request
    from olivelike.runtime.result import Batch, Picture


class Display(Protocol):
    """Is told what happens."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def opening(self, folder: Path) -> None:
        """Networks are being opened."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def started(self, pipeline: Pipeline, request: Request, safety: bool) -> None:
        """All is open."""

    def step(self, step: Step) -> None:
        """A step of a batch is done."""

    def picture(self, picture: Picture, path: Path) -> None:
        """A picture is written."""

    def batch(self, batch: Batch) -> None:
        """A batch is done."""

    def sheet(self, path: Path) -> None:
        """The contact sheet is written."""


class Lines:
    """For people: lines on standard output, with a bar under them on a terminal."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._began = time.monotonic()
        self._speed = Speed()
        self._checked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drop_bar()

    def opening(self, folder: Path) -> None:
        """Say which folder it is."""
        self._began = time.monotonic()
        write_line(f"Opening {folder} …")

    def note(self, text: str) -> None:
        """Write to standard error."""
        write_error(f"note: {text}")

    def started(self, pipeline: Pipeline, request: Request, safety: bool) -> None:
        """Say where it runs, and whether pictures are checked."""
        assert request.size is not None
        self._checked = pipeline.checks_safety
        opened = duration(time.monotonic() - self._began)
        write_line(f"  on {pipeline.unet.session.provider} in {opened}, {request.size[0]}x{request.size[1]}")
        if not self._checked:
            why = "this folder has no safety checker" if safety else "the safety checker is off"
            write_line(f"  {why}: nothing looks at the pictures")

    def step(self, step: Step) -> None:
        """Begin a batch, or move its bar."""
        if step.number == 1:
            self._speed = Speed()
            again = f", attempt {step.attempt}" if step.attempt > 1 else ""
            self._drop_bar()
            write_line(f"Batch {step.batch} of {step.batches}{again}")
            if self._live:
                self._add_bar(step.total)
        self._speed.step()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step.number)

    def picture(self, picture: Picture, path: Path) -> None:
        """Name the file, and say if it is black."""
        self._drop_bar()
        self._tell_speed()
        again = "" if picture.attempts == 1 else f" at attempt {picture.attempts}"
        flagged = ", black: the safety checker flagged it" if picture.flagged else ""
        write_line(f"  {path} (seed {picture.seed}{again}){flagged}")

    def batch(self, batch: Batch) -> None:
        """Say how long it took, and what passed."""
        passed = f"{batch.passed} of {count(len(batch.pictures), 'picture')}"
        checked = f"; {passed} passed the safety checker" if self._checked else ""
        write_line(f"  done in {duration(batch.seconds)}{checked}")

    def sheet(self, path: Path) -> None:
        """Name the file."""
        write_line(f"All on one sheet: {path}")

    def _tell_speed(self) -> None:
        """Write how fast the steps of a batch were, before its first picture."""
        if self._speed.steps:
            rate = "" if self._speed.per_second is None else f", {self._speed.per_second:.2f} it/s"
            write_line(f"  {count(self._speed.steps, 'step')}{rate}")
        self._speed = Speed()

    def _add_bar(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(bar_width=32), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(TextColumn(" "), *columns, speed_column(self._speed), transient=True)
        self._progress.start()
        self._task = self._progress.add_task("", total=total)

    def _drop_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = None
