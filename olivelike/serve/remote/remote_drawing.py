"""Drawing by `generate --server`: orders to a running server, its pictures into files here."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.errors import Interrupted, MissingError, OlivelikeError, UsageError
from olivelike.runtime.jobs.job_drawing import (
    BatchDone,
    Event,
    MergedLora,
    Opened,
    Opening,
    PictureFiles,
    StepDone,
    read_event,
)
from olivelike.runtime.pictures import PictureRecord
from olivelike.runtime.pictures.picture_record import record_from_json
from olivelike.runtime.pipeline.request import Picture, require_safe
from olivelike.serve.remote.client import BusyError, GoneError, Server
from olivelike.serve.views import ENDED, JobView, PictureView

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from PIL import Image

    from olivelike._untrusted import JsonView
    from olivelike.runtime.pictures import PictureWriter
    from olivelike.serve.remote.remote_orders import RemoteOrder, RemotePlan

_MOST_LOST: Final = 5
"""Times in a row that the server's events may break off without a word; the pauses between grow, to 15 s in all."""
_SECONDS_TO_CANCEL: Final = 5.0


@dataclass
class _Job:
    """An order that the server has accepted."""

    order: RemoteOrder
    before: int
    """Batches of all orders before it."""
    step: int = 0
    """Steps done of the present batch."""
    began: bool = False
    ended: bool = False
    later: list[BatchDone] = field(default_factory=list)
    """Batches that were drawn while pictures of earlier orders were waited for."""
    seen: set[str] = field(default_factory=set)
    """Ids of pictures that are written."""


def draw_orders(
    server: Server,
    plan: RemotePlan,
    writer: PictureWriter,
    *,
    sheet: bool = False,
    on_event: Callable[[Event], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
    while_writing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> list[Path]:
    """Let a server draw what is planned, and write each picture as soon as it is there, as `draw` does.

    When it ends otherwise, jobs that have not ended are cancelled. Returns the files of the pictures.

    Raises:
        SafetyError: if pictures are flagged in all attempts; they are written, black.
        UsageError: if a picture can't be written, or the server refuses what is asked for.
        OlivelikeError: what the server says that went wrong.
    """
    first = plan.orders[0].body
    writer.require_writable(PictureRecord(first["prompt"], seed=first["seed"]))
    files = PictureFiles(writer=writer, tell=on_event, while_writing=while_writing, sheet=sheet)
    drawing = _Drawing(server, plan, files, on_note)
    try:
        drawing.run()
    except (KeyError, TypeError, ValueError) as error:  # Also of pydantic: it is someone else's server, or version.
        drawing.cancel()
        raise MissingError(f"{server.url}: an answer that this version can't read: {error!r}") from error
    except BaseException:
        drawing.cancel()
        raise
    files.keep_sheet()
    require_safe(len(files.written), drawing.flagged, int(first.get("retry_unsafe", 0)))
    return files.written


class _Drawing:
    """Orders on their way, in the order of the plan."""

    def __init__(self, server: Server, plan: RemotePlan, files: PictureFiles, on_note: Callable[[str], None]) -> None:
        self._server, self._plan, self._files, self._on_note = server, plan, files, on_note
        self._batches = sum(order.batches for order in plan.orders)
        self._waiting = deque(plan.orders)
        self._jobs: dict[str, _Job] = {}
        """Jobs that have not ended, by their id."""
        self._begun = 0
        self._loras: tuple[MergedLora, ...] | None = None
        """LoRAs of the pipeline that was opened last."""
        self._is_open = False
        self._told: set[str] = set()
        self.flagged: list[int] = []

    def run(self) -> None:
        lost = 0
        while self._waiting or self._jobs:
            try:
                for job in tuple(self._jobs):
                    self._catch_up(job)
                # Listening comes first, so that no event of a quick job is missed.
                with contextlib.closing(self._server.events()) as events:
                    for place, event in enumerate(events):
                        lost = 0
                        if place == 0:
                            self._submit()
                        if event.get("job") in self._jobs:
                            self._take(event, self._jobs[str(event["job"])])
                        if not self._jobs and not self._waiting:
                            return
            except GoneError:
                if not self._jobs or lost == _MOST_LOST:
                    raise
                self._tell(f"{self._server.url} does not answer; its jobs survive a restart, so it is waited for")
            lost += 1
            if lost > _MOST_LOST:
                raise MissingError(f"{self._server.url}: its events end without a word; is it `olivelike serve`?")
            time.sleep(lost if self._jobs else 0)

    def cancel(self) -> None:
        """Take back what the server has not drawn."""
        for job in self._jobs:
            with contextlib.suppress(OlivelikeError):
                self._server.post(f"/api/jobs/{job}/cancel", seconds=_SECONDS_TO_CANCEL)

    def _submit(self) -> None:
        """Hand in what the server takes; it takes more when something has ended."""
        while self._waiting:
            order = self._waiting[0]
            try:
                view = JobView.model_validate(self._server.post("/api/jobs", order.body))
            except BusyError:
                if not self._jobs:
                    raise
                return
            except UsageError as error:
                raise (UsageError(f"{order.place}: {error}") if order.place else error) from error
            self._waiting.popleft()
            self._jobs[view.id] = _Job(order, self._begun)
            self._begun += order.batches
            for note in view.notes:
                self._tell(note)
            if len(self._jobs) == 1 and view.position:
                self._tell(f"{self._server.url} draws {view.position} of other jobs before")

    def _tell(self, note: str) -> None:
        if note not in self._told:
            self._told.add(note)
            self._on_note(note)

    def _take(self, told: JsonView, job: _Job) -> None:
        event, is_first = read_event(told), job is next(iter(self._jobs.values()))
        match event:
            case Opening():
                self._opening(event.loras)
            case Opened():
                self._open(job, event)
            case StepDone() if is_first:
                self._step(job, event)
            case BatchDone() if is_first:
                self._end_batch(job, event)
            case BatchDone():
                job.later.append(event)
        if told.get("type") == "picture":
            self._picture(job, PictureView.model_validate(told["picture"]))
        elif told.get("type") in ENDED:
            job.ended = True
            self._write_in_order()

    def _write_in_order(self) -> None:
        """Fetch what waits of jobs that have ended, up to the first that has not."""
        while (first := next(iter(self._jobs), None)) is not None and self._jobs[first].ended:
            self._catch_up(first)

    def _opening(self, loras: tuple[MergedLora, ...]) -> None:
        """Say once what opens, and again when other LoRAs do."""
        if loras != self._loras:
            self._loras, self._is_open = loras, False
            self._files.tell(Opening(model=self._plan.model, loras=loras))

    def _open(self, job: _Job, event: Opened) -> None:
        """Say what draws, behind what opens: a warm pipeline opens nothing."""
        job.began = True
        self._opening(event.loras)
        if not self._is_open:
            self._is_open = True
            seed = job.order.body["seed"]
            self._files.tell(replace(event, seed=seed, pictures=self._plan.pictures, safety=True))

    def _step(self, job: _Job, event: StepDone) -> None:
        if event.step <= job.step:
            job.step = 0
        body = job.order.body
        placed = replace(
            event, batch=job.before + event.batch, batches=self._batches, prompts=event.prompts or (body["prompt"],),
            size=(body["width"], body["height"]) if "width" in body else None,
        )  # fmt: skip
        # A server leaves out steps that nobody has fetched when the next is done.
        for number in range(job.step + 1, event.step + 1):
            self._files.tell(replace(placed, step=number))
        job.step = event.step

    def _picture(self, job: _Job, view: PictureView) -> None:
        """Fetch and write a picture, once."""
        if view.id in job.seen or job is not next(iter(self._jobs.values())):
            return  # Several workers draw at once; files are written in the order of the plan.
        job.seen.add(view.id)
        record = self._record(view)
        if not job.began:
            self._open(
                job,
                Opened(
                    provider=str(record.provider), width=view.width, height=view.height,
                    checked=view.flagged is not None, seed=0, pictures=0, model=self._plan.model,
                ),
            )  # fmt: skip
        image = _decoded(self._server.picture(view.id), self._server.url)
        seed = record.seed or 0
        first = seed if view.first_seed is None else view.first_seed
        self._files.keep(len(job.seen), Picture(image, record.prompt, seed, first, view.flagged, view.attempts), record)
        self.flagged += [first] if view.flagged else []

    def _end_batch(self, job: _Job, event: BatchDone) -> None:
        job.step = 0
        self._files.tell(replace(event, batch=job.before + event.batch, batches=self._batches))

    def _catch_up(self, name: str) -> None:
        """Fetch what is not here of a job, and let it go if it has ended and is the first."""
        job, view = self._jobs[name], JobView.model_validate(self._server.get(f"/api/jobs/{name}"))
        for picture in view.pictures:
            self._picture(job, picture)
        if view.state not in ENDED:
            return
        job.ended = True
        if name != next(iter(self._jobs)):
            return
        for event in job.later:
            self._end_batch(job, event)
        del self._jobs[name]
        if view.state == "cancelled":
            raise Interrupted(
                f"{self._server.url}: the job was cancelled there; {len(self._files.written)} pictures written"
            )
        if view.state == "failed" and view.error is not None and view.error.code != "safety":
            raise self._server.failure(view.error.code, view.error.message)
        self._submit()

    def _record(self, view: PictureView) -> PictureRecord:
        """Return a picture's record with the names that files have here."""
        told = {"format": "olivelike/picture/1", **(view.record or {"prompt": view.prompt, "seed": view.seed})}
        record = record_from_json(json.dumps(told), f"{self._server.url}, picture {view.id}")
        named = self._plan.used
        pairs = zip(record.controls, named.controls, strict=False)
        controls = tuple(replace(control, image=here.image) for control, here in pairs)
        return replace(record, **replace(named, controls=controls).given())


def _decoded(data: bytes, url: str) -> Image.Image:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=["PNG"])
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise MissingError(f"{url}: sent a picture that can't be read: {error}") from error
    return image.convert("RGB")
