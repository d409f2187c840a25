"""What `olivelike generate` tells people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self

from olivelike.cli.display.speed import Speed, speed_column
from olivelike.cli.display.text import count, duration
from olivelike.cli.stdout import write_error, write_line
from olivelike.runtime.prompts import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from rich.progress import Progress

    from olivelike.cli.commands.live_loras import LiveLora
    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.pipeline.pipeline import Pipeline
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.pipeline.result import Batch, Picture


class Display(Protocol):
    """Is told what happens."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def opening(self, folder: Path, loras: Sequence[LiveLora]) -> None:
        """Networks are being opened, with LoRAs merged into them."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def started(self, pipeline: Pipeline, request: Request, safety: bool, pictures: int) -> None:
        """All is open."""

    def step(self, step: Step, request: Request, prompts: Sequence[str]) -> None:
        """A step of a batch with these prompts is done."""

    def picture(self, picture: Picture, prompt: str, path: Path) -> None:
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
        self._began = time.monotonic()
        self._drawing: float | None = None
        self._size: tuple[int, int] | None = None
        self._speed = Speed()
        self._checked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drop_bar()

    def opening(self, folder: Path, loras: Sequence[LiveLora]) -> None:
        """Say which folder it is, and with which LoRAs."""
        self._began = time.monotonic()
        named = ", ".join(str(lora) for lora in loras)
        write_line(f"Opening {folder}{f' with {named}' if named else ''} …")

    def note(self, text: str) -> None:
        """Write to standard error."""
        write_error(f"note: {text}")

    def started(self, pipeline: Pipeline, request: Request, safety: bool, pictures: int) -> None:  # noqa: ARG002
        """Say where it runs, and whether pictures are checked."""
        assert request.size is not None
        self._checked = pipeline.checks_safety
        self._size = request.size
        opened = duration(time.monotonic() - self._began)
        write_line(f"  on {pipeline.unet.session.provider} in {opened}, {request.size[0]}x{request.size[1]}")
        if not self._checked and self._drawing is None:  # Once, however many times it is opened.
            why = "this folder has no safety checker" if safety else "the safety checker is off"
            write_line(f"  {why}: nothing looks at the pictures")
        self._drawing = self._drawing or time.monotonic()

    def step(self, step: Step, request: Request, prompts: Sequence[str]) -> None:
        """Begin a batch, or move its bar."""
        if step.number == 1:
            self._speed = Speed()
            self._drop_bar()
            write_line(self._title(step, request, prompts))
            if self._live:
                self._add_bar(step)
        self._speed.step()
        if self._progress is not None:
            left = self._left(step.batch - 1 + step.number / step.total, step.batches)
            for task in self._progress.task_ids:
                self._progress.update(task, completed=step.number, left=left)

    def _title(self, step: Step, request: Request, prompts: Sequence[str]) -> str:
        again = f", attempt {step.attempt}" if step.attempt > 1 else ""
        other = request.size if request.size not in (None, self._size) else None
        sized = f", {other[0]}x{other[1]}" if other else ""
        more = f" and {count(len(prompts) - 1, 'other')}" if len(prompts) > 1 else ""
        return (
            f"Batch {step.batch} of {step.batches}{again}{sized}: {shortened(prompts[0]) or 'no words'}{more}"
        )

    def _left(self, done: float, batches: int) -> str:
        """Say how long all batches together will still take, as fast as they were until now."""
        if batches == 1 or not self._drawing:
            return ""
        return f"about {duration((time.monotonic() - self._drawing) / done * (batches - done))} left for all"

    def picture(self, picture: Picture, prompt: str, path: Path) -> None:  # noqa: ARG002
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
        left = self._left(batch.number, batch.total) if batch.number < batch.total else ""
        write_line(f"  done in {duration(batch.seconds)}{checked}{f'; {left}' if left else ''}")

    def sheet(self, path: Path) -> None:
        """Name the file."""
        write_line(f"All on one sheet: {path}")

    def _tell_speed(self) -> None:
        """Write how fast the steps of a batch were, before its first picture."""
        if self._speed.steps:
            rate = "" if self._speed.per_second is None else f", {self._speed.per_second:.2f} it/s"
            write_line(f"  {count(self._speed.steps, 'step')}{rate}")
        self._speed = Speed()

    def _add_bar(self, step: Step) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(bar_width=32), MofNCompleteColumn(), TimeRemainingColumn())
        overall = TextColumn("{task.fields[left]}")
        self._progress = Progress(
            TextColumn(" "), *columns, speed_column(self._speed), overall, transient=True
        )
        self._progress.start()
        self._progress.add_task("", total=step.total, left="")

    def _drop_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
