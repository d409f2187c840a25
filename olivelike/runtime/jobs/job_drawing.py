"""Drawing what is planned: batch after batch, each picture kept at once, whoever it is drawn for.

What happens is told as values: servers send them on, `generate` shows them.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from olivelike.errors import Interrupted
from olivelike.runtime.pipeline.pipeline import Pipeline, begin_pipeline
from olivelike.runtime.pipeline.request import Picture, require_safe
from olivelike.runtime.sessions.session import ENGINE_CALLS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from olivelike._untrusted import Json, JsonView
    from olivelike.runtime.jobs.fast import Lora
    from olivelike.runtime.jobs.job_plan import Job, JobPlan
    from olivelike.runtime.pictures import PictureRecord, PictureWriter
    from olivelike.runtime.pictures.sheets import SheetPicture
    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.sessions.session_settings import SessionSettings

_STEP_SECONDS: Final = 1.0
"""Seconds that a step may take after a cancel; then its engine is ended."""
_HERE: Final = {"sent": "never"}
"""Marks a field that stays in this process."""
_IF_ANY: Final = {"sent": "if any"}


@dataclass(frozen=True)
class MergedLora:
    """A LoRA on top of a pipeline."""

    name: str
    text: str
    """With its weight."""


def merged_loras(loras: Sequence[Lora]) -> tuple[MergedLora, ...]:
    """Return what is told of LoRAs."""
    return tuple(MergedLora(lora.name, str(lora)) for lora in loras)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that has happened."""

    kind: ClassVar[str]
    """Its word in JSON: `type` of what clients of a server are told."""

    def to_json(self) -> Json:
        """Return its fields as other processes are told of them."""
        found = {}
        for one in fields(self):
            value, sent = getattr(self, one.name), one.metadata.get("sent")
            if sent is None or (sent == "if any" and value):
                found[one.name] = [_plain(part) for part in value] if isinstance(value, tuple) else value
        return found


@dataclass(frozen=True, kw_only=True)
class Opening(Event):
    """Networks are being opened, with LoRAs merged into them."""

    kind = "opening"
    model: str
    """The folder; to clients of a server, its name there."""
    loras: tuple[MergedLora, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Opened(Event):
    """Networks are open that the next pictures are drawn with."""

    kind = "opened"
    provider: str
    """Execution provider of the denoiser."""
    width: int
    height: int
    """Pixels of the first picture."""
    checked: bool = True
    """Whether a safety checker looks at them."""
    safety: bool = True
    """Whether one was asked for."""
    seed: int
    pictures: int
    """Number of pictures of all jobs."""
    model: str
    loras: tuple[MergedLora, ...] = ()
    lora_ways: tuple[str, ...] = field(default=(), metadata=_IF_ANY)
    """Of networks that have `lora_inputs.onnx`: whether the LoRAs are factors there or merged, and why."""


@dataclass(frozen=True, kw_only=True)
class StepDone(Event):
    """A step of a batch is done."""

    kind = "step"
    step: int
    """From 1, with those of a second pass."""
    steps: int
    batch: int
    """From 1, among those of all jobs."""
    batches: int
    attempt: int = 1
    """More than 1 where flagged pictures are drawn again."""
    timestep: float = 0.0
    done: int = 0
    """Steps of all batches so far, of about `steps_total`."""
    steps_total: int = 0
    eta: float = 0.0
    """Seconds until all is done, if it goes on as fast."""
    prompts: tuple[str, ...] = field(default=(), metadata=_IF_ANY)
    """All of the batch, each once."""
    preview: str | None = field(default=None, metadata=_IF_ANY)
    """URL with a picture of what the step looks like."""
    size: tuple[int, int] | None = field(default=None, metadata=_HERE)
    images: Callable[[], list[Any]] | None = field(default=None, metadata=_HERE, compare=False)
    """Makes pictures of what the step looks like."""


@dataclass(frozen=True, kw_only=True)
class PictureWritten(Event):
    """A picture is in its file."""

    kind = "picture"
    path: str
    prompt: str
    """With its choices made, and the tags of LoRAs in it."""
    seed: int
    first_seed: int
    """Seed of its first attempt."""
    attempts: int
    flagged: bool | None
    """Whether the safety checker made it black; `None` if none looked."""


@dataclass(frozen=True, kw_only=True)
class BatchDone(Event):
    """All pictures of a batch are in their files."""

    kind = "batch"
    batch: int
    batches: int
    pictures: int
    passed: int
    """Pictures that are not flagged."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SheetWritten(Event):
    """The sheet of all pictures is in its file."""

    kind = "sheet"
    path: str


_SENT: Final = {one.kind: one for one in (Opening, Opened, StepDone, BatchDone)}


def read_event(told: JsonView) -> Event | None:
    """Return an event that a server tells; `None` for one that is not of these, pictures among them.

    Raises `ValueError` for one that lacks a field, or has one of another type.
    """
    from pydantic import TypeAdapter

    kind = _SENT.get(str(told.get("type")))
    if kind is None:
        return None
    sent = [one.name for one in fields(kind) if one.metadata.get("sent") != "never" and told.get(one.name) is not None]
    event: Event = TypeAdapter(kind).validate_python({name: told[name] for name in sent})
    return event


def _plain(value: Any) -> Any:
    return vars(value) if isinstance(value, MergedLora) else value


class Host(Protocol):
    """For whom jobs are drawn: it opens pipelines, keeps pictures and hears what happens."""

    def pipeline_for(self, job: Job, on_opening: Callable[[], None]) -> Pipeline:
        """Return the pipeline of a job, with its LoRAs; `on_opening` is called first where it is not open yet."""

    def keep(self, number: int, picture: Picture, record: PictureRecord) -> None:
        """Write a picture, and tell of it."""

    def keep_sheet(self) -> None:
        """Write the sheet of all pictures, if there is to be one, and tell of it."""

    def tell(self, event: Event) -> None:
        """Hear what happened."""


class JobDrawing:
    """Jobs that are being drawn."""

    def __init__(self, host: Host, *, safety: bool, there: Collection[int] = ()) -> None:
        """Set it up.

        Args:
            host: for whom they are drawn. It is not kept alive, since it may keep this.
            safety: whether a safety checker is asked for.
            there: numbers of pictures that are not to be drawn again.
        """
        self._host: Host = weakref.proxy(host)
        self._safety = safety
        self._there = set(there)
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._skips = self._is_drawing = False
        self._end_engine: threading.Timer | None = None
        self._opened: tuple[Path | None, tuple[Lora, ...], str] = None, (), ""
        """Folder and LoRAs that were told of last, and the provider."""
        self._batches = self._batch = self._steps = self._steps_done = self._pictures = 0
        self._began: float | None = None
        self._reached = self._undrawn = 0.0
        """Steps up to the last one that ran, and those of them that took no time: of batches that were there, or that a
        skip ended."""
        self._prompts: tuple[str, ...] = ()

    def stop(self, *, skip: bool) -> None:
        """End the drawing, or its batch, from another thread: before its next step, or in it if that takes long."""
        with self._guard:
            if self._stopped.is_set() and not self._skips:
                return  # It ends already.
            self._skips = skip
            self._stopped.set()
            if not skip and self._is_drawing:  # Else the engine computes for others.
                self._end_engine = threading.Timer(_STEP_SECONDS, ENGINE_CALLS.end)
                self._end_engine.daemon = True
                self._end_engine.start()

    def draw(self, jobs: Sequence[Job]) -> None:
        """Draw all that is not there yet.

        Raises `SafetyError` if pictures are flagged in all attempts; they are kept, black. Raises `Interrupted` if it
        was stopped. Raises `SessionError` if a network can't be opened or run here.
        """
        with self._guard:
            self._is_drawing = True
        self._batches, self._steps = sum(job.batches for job in jobs), sum(job.batches * job.steps for job in jobs)
        self._pictures = sum(len(job.numbers) for job in jobs)
        try:
            flagged = [seed for job in jobs for seed in self._draw_job(job)]
            if self._there:
                self._host.keep_sheet()
            require_safe(len(self._there), flagged, jobs[0].request.retry_unsafe)
        finally:
            with self._guard:
                self._is_drawing = False
            if self._end_engine is not None:
                self._end_engine.cancel()
                self._end_engine.join()

    def _draw_job(self, job: Job) -> list[int]:
        """Draw pictures of a job; return the seeds of those that are flagged."""
        size, total = job.request.batch_size, len(job.numbers)
        missing = next((place for place, number in enumerate(job.numbers) if number not in self._there), total)
        place = total if missing == total else missing - missing % size
        self._pass(job, there := place // size if place < total else job.batches)
        self._undrawn += there * job.steps
        if place == total:
            return []
        if self._stopped.is_set() and not self._skips:
            raise Interrupted("cancelled between two batches")
        pipeline = self._open(job)
        _, _, provider = self._opened
        self._began = self._began or time.monotonic()
        flagged: list[int] = []
        while place < total:
            self._reached = self._steps_done
            request, on_step = job.request.without(place), partial(self._on_step, job, place)
            try:
                for batch in pipeline.batches(request, on_step=on_step, cancel=self._stopped):
                    for number, picture in zip(job.numbers[place:], batch.pictures, strict=False):
                        if number not in self._there:
                            self._host.keep(number, picture, job.record_of(picture, provider))
                            self._there.add(number)
                        flagged += [picture.first_seed] if picture.flagged else []
                    place += size
                    self._pass(job, 1)
                    self._host.tell(
                        BatchDone(
                            batch=self._batch, batches=self._batches, pictures=len(batch.pictures),
                            passed=batch.passed, seconds=round(batch.seconds, 4),
                        )
                    )  # fmt: skip
            except Interrupted:
                with self._guard:
                    if not self._skips:
                        raise
                    self._skips = False
                    self._stopped.clear()
                place += size
                self._pass(job, 1)
                self._undrawn += self._steps_done - self._reached
        return flagged

    def _open(self, job: Job) -> Pipeline:
        model, loras = str(job.folder), merged_loras(job.loras)
        pipeline = self._host.pipeline_for(job, lambda: self._host.tell(Opening(model=model, loras=loras)))
        if self._opened[:2] != (job.folder, job.loras):
            self._opened = job.folder, job.loras, pipeline.provider
            width, height = job.request.size
            self._host.tell(
                Opened(
                    provider=self._opened[2], width=width, height=height, checked=pipeline.checks_safety,
                    safety=self._safety, seed=job.request.seed, pictures=self._pictures, model=model, loras=loras,
                    lora_ways=pipeline.lora_ways(job.request) if job.loras else (),
                )
            )  # fmt: skip
        return pipeline

    def _pass(self, job: Job, batches: int) -> None:
        self._batch += batches
        self._steps_done += batches * job.steps

    def _on_step(self, job: Job, place: int, step: Step) -> None:
        assert self._began is not None
        done = self._reached = self._steps_done + job.steps * step.number / step.total
        if step.number == 1:
            self._prompts = job.prompts(place // job.request.batch_size + step.batch)
        self._host.tell(
            StepDone(
                step=step.number, steps=step.total, batch=self._batch + 1, batches=self._batches, attempt=step.attempt,
                timestep=step.timestep, done=round(done), steps_total=self._steps,
                eta=round((time.monotonic() - self._began) / (done - self._undrawn) * (self._steps - done), 2),
                prompts=self._prompts, size=job.request.size, images=step.preview.show,
            )
        )  # fmt: skip


def draw(
    plan: JobPlan,
    writer: PictureWriter,
    settings: SessionSettings | None = None,
    *,
    safety: bool = True,
    ahead: Pipeline | None = None,
    sheet: bool = False,
    on_event: Callable[[Event], None] = lambda _: None,
    while_writing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> list[Path]:
    """Open the networks, once for each set of LoRAs, and make and write all pictures.

    Returns the files of the pictures. Raises `SafetyError` if pictures are flagged in all attempts; they are written,
    black. Raises `UsageError` if a picture can't be written. Raises `SessionError` if a network can't be opened or run
    here.

    Args:
        settings: of the sessions; by default those of the folder's target.
        ahead: what `begin_pipeline` returned for the same folder and settings, without LoRAs; none draws with it later,
            and who began it tells of `Opening`.
        sheet: whether all come on one sheet too.
        on_event: called as things happen, in this thread.
        while_writing: goes round the writing of each picture and its event.
    """
    for job in plan.jobs:
        writer.require_writable(job.record)
    here = _Here(
        writer=writer, tell=on_event, while_writing=while_writing, sheet=sheet,
        settings=settings, safety=safety, ahead=ahead,
    )  # fmt: skip
    JobDrawing(here, safety=safety).draw(plan.jobs)
    return here.written


@dataclass(kw_only=True)
class PictureFiles:
    """Pictures in files where the user wants them, each told of as it is written."""

    writer: PictureWriter
    tell: Callable[[Event], None]
    while_writing: Callable[[], AbstractContextManager[None]]
    sheet: bool
    written: list[Path] = field(default_factory=list)
    _first: PictureRecord | None = None
    _cells: list[SheetPicture] = field(default_factory=list)

    def keep(self, _: int, picture: Picture, record: PictureRecord) -> None:
        """Write a picture under the next name."""
        from olivelike.runtime.pictures.sheets import SheetPicture

        self._first = self._first or record
        with self.while_writing():
            self.written.append(self.writer.save(picture.image, record))
            self.tell(
                PictureWritten(
                    path=str(self.written[-1]), prompt=record.prompt, seed=picture.seed, first_seed=picture.first_seed,
                    attempts=picture.attempts, flagged=picture.flagged,
                )
            )  # fmt: skip
        if self.sheet:  # Without one, pictures are held for their batch alone.
            self._cells.append(
                SheetPicture(picture.image, record.prompt, f"Seed {picture.seed}", bool(picture.flagged))
            )

    def keep_sheet(self) -> None:
        """Write the sheet, if there is to be one."""
        if self._cells and self._first is not None:
            self.tell(SheetWritten(path=str(self.writer.save_sheet(self._cells, self._first))))


@dataclass(kw_only=True)
class _Here(PictureFiles):
    """This process: its pipeline is open for one set of LoRAs after the other."""

    settings: SessionSettings | None
    safety: bool
    ahead: Pipeline | None
    _pipeline: Pipeline | None = None
    _loras: tuple[Lora, ...] = ()
    """LoRAs in the pipeline."""

    def pipeline_for(self, job: Job, on_opening: Callable[[], None]) -> Pipeline:
        if self._pipeline is None or self._loras != job.loras:
            begun, self.ahead = self._pipeline or self.ahead, None
            if begun is None or job.loras != self._loras:
                on_opening()
                merged = job.lora_files.merge(job.loras, job.folder) if job.loras and job.lora_files else {}
                if begun is not None:
                    begun = begun.with_initializers(merged, job.request)
                else:
                    begun = begin_pipeline(
                        job.folder, self.settings, safety=self.safety, initializers=merged, request=job.request
                    )
            self._pipeline, self._loras = begun, job.loras
            self._pipeline.wait()
        return self._pipeline
