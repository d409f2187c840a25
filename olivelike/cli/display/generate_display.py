"""Output of `olivelike generate`, for people and for programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from olivelike._text import count, duration
from olivelike.cli.display.text import message
from olivelike.cli.stdout import write_error, write_json, write_line
from olivelike.runtime.jobs.job_drawing import DrawEvent, Opened, Opening, PictureWritten, SheetWritten, StepDone
from olivelike.runtime.pipeline.request import Batch
from olivelike.runtime.prompts.syntax import shortened

if TYPE_CHECKING:
    from rich.progress import Progress


class Lines:
    """For people: lines on standard output, with a bar under them on a terminal."""

    def __init__(self, *, live: bool) -> None:
        self.written = 0
        self._live = live
        self._progress: Progress | None = None
        self._opening = 0.0
        self._drawing: float | None = None
        self._size: tuple[int, int] | None = None
        self._speed = _Speed()
        self._speed_text = ""
        """Speed of a batch whose end tells it: of several, where nobody watches."""
        self._checked = False
        self._passed = self._seen = 0
        self._many = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop_bar()

    def note(self, text: str) -> None:
        """Write to standard error."""
        write_error(f"note: {text}")

    def __call__(self, event: DrawEvent) -> None:
        """Write what it means."""
        match event:
            case Opening(folder, loras):
                self._opening = time.monotonic()
                named = ", ".join(map(str, loras))
                write_line(f"Opening {folder}{f' with {named}' if named else ''} …")
            case Opened():
                self._opened(event)
            case StepDone():
                self._step(event)
            case PictureWritten(picture, _, path):
                self._drop_bar()
                self._write_speed()
                again = "" if picture.attempts == 1 else f" at attempt {picture.attempts}"
                flagged = ", black: the safety checker flagged it" if picture.flagged else ""
                write_line(f"  {path} (seed {picture.seed}{again}){flagged}")
                self.written += 1
            case Batch():
                self._passed += event.passed
                self._seen += len(event.pictures)
                last = event.number == event.total
                left = "" if last else f"; {self._left(event.number, event.total)}"
                # Flagged pictures are told of beside their names.
                passed = f"{self._passed} of {count(self._seen, 'picture')} passed the safety checker"
                checked = f"; {passed}" if self._checked and last else ""
                if last:
                    self._passed = self._seen = 0
                write_line(f"  {self._speed_text}done in {duration(event.seconds)}{checked}{left}")
                self._speed_text = ""
            case SheetWritten(path):
                write_line(f"All on one sheet: {path}")

    def _opened(self, event: Opened) -> None:
        self._checked, self._size = event.checked, event.request.size
        taken = duration(time.monotonic() - self._opening)
        write_line(f"  on {event.provider} in {taken}, {self._size[0]}x{self._size[1]}")
        if not self._checked and self._drawing is None:  # Once, however many times it is opened.
            why = "this folder has no safety checker" if event.safety else "the safety checker is off"
            write_line(f"  {why}: nothing looks at the pictures")
        self._drawing = self._drawing or time.monotonic()

    def _step(self, event: StepDone) -> None:
        """Begin a batch, or move its bar."""
        step = event.step
        self._many = step.batches > 1
        if step.number == 1:
            self._speed = _Speed()
            self._drop_bar()
            write_line(self._title(event))
            if self._live:
                self._add_bar(step.total)
        self._speed.step()
        if self._progress is not None:
            left = self._left(step.batch - 1 + step.number / step.total, step.batches)
            for task in self._progress.task_ids:
                self._progress.update(task, completed=step.number, speed=self._speed, left=left)

    def _title(self, event: StepDone) -> str:
        step, (first, *others) = event.step, event.prompts
        again = f", attempt {step.attempt}" if step.attempt > 1 else ""
        other = event.size if event.size not in (None, self._size) else None
        sized = f", {other[0]}x{other[1]}" if other else ""
        more = f" and {count(len(others), 'other')}" if others else ""
        return f"Batch {step.batch} of {step.batches}{again}{sized}: {shortened(first) or 'no words'}{more}"

    def _left(self, done: float, batches: int) -> str:
        """Say how long all batches together will still take, as fast as they were until now."""
        if batches == 1 or not self._drawing:
            return ""
        return f"about {duration((time.monotonic() - self._drawing) / done * (batches - done))} left for all"

    def _write_speed(self) -> None:
        """Write how fast the steps of a batch were, before its first picture."""
        if self._speed.steps:
            rate = f", {self._speed}" if str(self._speed) else ""
            told = f"{count(self._speed.steps, 'step')}{rate}"
            if self._live or not self._many:
                write_line(f"  {told}")
            else:
                self._speed_text = f"{told}, "
        self._speed = _Speed()

    def _add_bar(self, steps: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(bar_width=32), MofNCompleteColumn(), TimeRemainingColumn())
        more = TextColumn("{task.fields[speed]} {task.fields[left]}")
        self._progress = Progress(TextColumn(" "), *columns, more, transient=True)
        self._progress.start()
        self._progress.add_task("", total=steps, speed="", left="")

    def _drop_bar(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None


class _Speed:
    """Steps per second, from the end of the first to the end of the last."""

    def __init__(self) -> None:
        self.steps = 0
        self._first = self._last = 0.0

    def step(self) -> None:
        self._last = time.monotonic()
        self._first = self._first or self._last
        self.steps += 1

    def __str__(self) -> str:
        elapsed = self._last - self._first
        return f"{(self.steps - 1) / elapsed:.2f} it/s" if self.steps > 1 and elapsed > 0 else ""


class JsonLines:
    """For programs: an object per line; the last one is `generate_finished`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._paths: list[str] = []
        self._flagged = 0
        self._sheet: str | None = None

    @property
    def written(self) -> int:
        """Pictures so far."""
        return len(self._paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._write(
            "generate_finished",
            pictures=self._paths,
            flagged=self._flagged,
            sheet=self._sheet,
            seconds=round(time.monotonic() - self._began, 3),
            error=message(error),
        )

    def note(self, text: str) -> None:
        """Write `note`."""
        self._write("note", text=text)

    def __call__(self, event: DrawEvent) -> None:
        """Write it."""
        match event:
            case Opening(folder, loras):
                self._write("opening", folder=str(folder), loras=[lora.name for lora in loras])
            case Opened(provider, request):
                self._write(
                    "generate_started",
                    provider=provider,
                    pictures=event.pictures,
                    width=request.size[0],
                    height=request.size[1],
                    seed=request.seed,
                    checked=event.checked,
                )
            case StepDone(step):
                place = {"batch": step.batch, "batches": step.batches, "attempt": step.attempt}
                self._write("step", **place, step=step.number, steps=step.total, timestep=step.timestep)
            case PictureWritten(picture, prompt, path):
                self._paths.append(str(path))
                self._flagged += picture.flagged is True
                self._write(
                    "picture",
                    path=str(path),
                    prompt=prompt,
                    seed=picture.seed,
                    first_seed=picture.first_seed,
                    attempts=picture.attempts,
                    flagged=picture.flagged,
                )
            case Batch():
                self._write(
                    "batch_finished",
                    batch=event.number,
                    batches=event.total,
                    pictures=len(event.pictures),
                    passed=event.passed,
                    seconds=round(event.seconds, 3),
                )
            case SheetWritten(path):  # For the last event.
                self._sheet = str(path)

    def _write(self, event: str, **data: Any) -> None:
        write_json({"event": event, **data})
