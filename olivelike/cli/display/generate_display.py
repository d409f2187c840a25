"""Output of `olivelike generate`, for people and for programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from olivelike._text import count, duration
from olivelike.cli.display.text import message
from olivelike.cli.stdout import write_error, write_json, write_line
from olivelike.runtime.jobs.job_drawing import BatchDone, Event, Opened, Opening, PictureWritten, SheetWritten, StepDone
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

    def __call__(self, event: Event) -> None:
        """Write what it means."""
        match event:
            case Opening():
                self._opening = time.monotonic()
                named = ", ".join(lora.text for lora in event.loras)
                write_line(f"Opening {event.model}{f' with {named}' if named else ''} …")
            case Opened():
                self._opened(event)
            case StepDone():
                self._step(event)
            case PictureWritten():
                self._drop_bar()
                self._write_speed()
                again = "" if event.attempts == 1 else f" at attempt {event.attempts}"
                flagged = ", black: the safety checker flagged it" if event.flagged else ""
                write_line(f"  {event.path} (seed {event.seed}{again}){flagged}")
                self.written += 1
            case BatchDone():
                self._passed += event.passed
                self._seen += event.pictures
                last = event.batch == event.batches
                left = "" if last else f"; {self._left(event.batch, event.batches)}"
                # Flagged pictures are told of beside their names.
                passed = f"{self._passed} of {count(self._seen, 'picture')} passed the safety checker"
                checked = f"; {passed}" if self._checked and last else ""
                if last:
                    self._passed = self._seen = 0
                write_line(f"  {self._speed_text}done in {duration(event.seconds)}{checked}{left}")
                self._speed_text = ""
            case SheetWritten():
                write_line(f"All on one sheet: {event.path}")

    def _opened(self, event: Opened) -> None:
        self._checked, self._size = event.checked, (event.width, event.height)
        taken = duration(time.monotonic() - self._opening)
        write_line(f"  on {event.provider} in {taken}, {self._size[0]}x{self._size[1]}")
        for way in event.lora_ways:
            write_line(f"  LoRAs in {way}")
        if not self._checked and self._drawing is None:  # Once, however many times it is opened.
            why = "this folder has no safety checker" if event.safety else "the safety checker is off"
            write_line(f"  {why}: nothing looks at the pictures")
        self._drawing = self._drawing or time.monotonic()

    def _step(self, event: StepDone) -> None:
        """Begin a batch, or move its bar."""
        self._many = event.batches > 1
        if event.step == 1:
            self._speed = _Speed()
            self._drop_bar()
            write_line(self._title(event))
            if self._live:
                self._add_bar(event.steps)
        self._speed.step()
        if self._progress is not None:
            left = self._left(event.batch - 1 + event.step / event.steps, event.batches)
            for task in self._progress.task_ids:
                self._progress.update(task, completed=event.step, speed=self._speed, left=left)

    def _title(self, event: StepDone) -> str:
        first, *others = event.prompts
        again = f", attempt {event.attempt}" if event.attempt > 1 else ""
        other = event.size if event.size not in (None, self._size) else None
        sized = f", {other[0]}x{other[1]}" if other else ""
        more = f" and {count(len(others), 'other')}" if others else ""
        return f"Batch {event.batch} of {event.batches}{again}{sized}: {shortened(first) or 'no words'}{more}"

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

    def __call__(self, event: Event) -> None:
        """Write it."""
        match event:
            case Opening():
                self._write("opening", folder=event.model, loras=[lora.name for lora in event.loras])
            case Opened():
                told = ("provider", "pictures", "width", "height", "seed", "checked")
                ways = {"lora_ways": event.lora_ways} if event.lora_ways else {}
                self._write("generate_started", **{name: getattr(event, name) for name in told}, **ways)
            case StepDone():
                told = ("batch", "batches", "attempt", "step", "steps", "timestep")
                self._write("step", **{name: getattr(event, name) for name in told})
            case PictureWritten():
                self._paths.append(event.path)
                self._flagged += event.flagged is True
                self._write("picture", **event.to_json())
            case BatchDone():
                self._write("batch_finished", **{**event.to_json(), "seconds": round(event.seconds, 3)})
            case SheetWritten():  # For the last event.
                self._sheet = event.path

    def _write(self, event: str, **data: Any) -> None:
        write_json({"event": event, **data})
