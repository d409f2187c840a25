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
from typing import TYPE_CHECKING, Final, cast

from olivelike.errors import Interrupted, MissingError, OlivelikeError, UsageError
from olivelike.runtime.jobs.job_drawing import DrawEvent, Opened, Opening, PictureWritten, SheetWritten, StepDone
from olivelike.runtime.pictures import PictureRecord
from olivelike.runtime.pictures.picture_record import record_from_json
from olivelike.runtime.pipeline.denoising import Step
from olivelike.runtime.pipeline.request import Batch, Picture, ResolvedRequest, require_safe
from olivelike.serve.remote.client import BusyError, GoneError
from olivelike.serve.views import ENDED, JobView, PictureView

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from PIL import Image

    from olivelike._untrusted import JsonView
    from olivelike.model.few_steps import FewSteps
    from olivelike.runtime.pictures import PictureWriter
    from olivelike.runtime.pictures.writer import SheetPicture
    from olivelike.runtime.pipeline.vae import Preview
    from olivelike.serve.remote.client import Server
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
    later: list[JsonView] = field(default_factory=list)
    """Batches that were drawn while pictures of earlier orders were waited for."""
    seen: set[str] = field(default_factory=set)
    """Ids of pictures that are written."""
    batch: list[Picture] = field(default_factory=list)


def draw_orders(
    server: Server,
    plan: RemotePlan,
    writer: PictureWriter,
    *,
    sheet: bool = False,
    on_event: Callable[[DrawEvent], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
    while_writing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> list[Path]:
    """Let a server draw what is planned, and write each picture as soon as it is there, as `draw` does.

    When it ends otherwise, jobs that have not ended are cancelled.

    Returns:
        The files of the pictures.

    Raises:
        SafetyError: if pictures are flagged in all attempts; they are written, black.
        UsageError: if a picture can't be written, or the server refuses what is asked for.
        OlivelikeError: what the server says that went wrong.
    """
    first = plan.orders[0].body
    writer.require_writable(PictureRecord(first["prompt"], seed=first["seed"]))
    drawing = _Drawing(server, plan, writer, on_event, on_note, while_writing, sheet=sheet)
    try:
        drawing.run()
    except (KeyError, TypeError, ValueError) as error:  # Also of pydantic: it is someone else's server, or version.
        drawing.cancel()
        raise MissingError(f"{server.url}: an answer that this version can't read: {error!r}") from error
    except BaseException:
        drawing.cancel()
        raise
    if drawing.cells and drawing.first is not None:
        on_event(SheetWritten(writer.save_sheet(drawing.cells, drawing.first)))
    require_safe(len(drawing.written), drawing.flagged, int(first.get("retry_unsafe", 0)))
    return drawing.written


class _Drawing:
    """Orders on their way, in the order of the plan."""

    def __init__(
        self,
        server: Server,
        plan: RemotePlan,
        writer: PictureWriter,
        on_event: Callable[[DrawEvent], None],
        on_note: Callable[[str], None],
        while_writing: Callable[[], AbstractContextManager[None]],
        *,
        sheet: bool,
    ) -> None:
        self._sheet = sheet
        self._server, self._plan, self._writer = server, plan, writer
        self._on_event, self._on_note, self._while_writing = on_event, on_note, while_writing
        self._batches = sum(order.batches for order in plan.orders)
        self._waiting = deque(plan.orders)
        self._jobs: dict[str, _Job] = {}
        """Jobs that have not ended, by their id."""
        self._begun = 0
        self._loras: tuple[_Named, ...] | None = None
        """LoRAs of the pipeline that was opened last."""
        self._is_open = False
        self._told: set[str] = set()
        self.written: list[Path] = []
        self.flagged: list[int] = []
        self.cells: list[SheetPicture] = []
        self.first: PictureRecord | None = None

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

    def _take(self, event: JsonView, job: _Job) -> None:
        if event.get("type") in ("step", "batch") and job is not next(iter(self._jobs.values())):
            job.later += [event] if event["type"] == "batch" else []
            return
        match event.get("type"):
            case "opening":
                self._opening(event)
            case "opened":
                self._open(job, event)
            case "step":
                self._step(job, event)
            case "picture":
                self._picture(job, PictureView.model_validate(event["picture"]))
            case "batch":
                self._end_batch(job, event)
            case kind if kind in ENDED:
                job.ended = True
                self._write_in_order()

    def _write_in_order(self) -> None:
        """Fetch what waits of jobs that have ended, up to the first that has not."""
        while (first := next(iter(self._jobs), None)) is not None and self._jobs[first].ended:
            self._catch_up(first)

    def _opening(self, event: JsonView) -> None:
        """Say once what opens, and again when other LoRAs do."""
        loras = tuple(_Named(str(lora["name"]), str(lora["text"])) for lora in event.get("loras") or ())
        if loras != self._loras:
            self._loras, self._is_open = loras, False
            self._on_event(Opening(Path(self._plan.model), loras))

    def _open(self, job: _Job, event: JsonView) -> None:
        """Say what draws, behind what opens: a warm pipeline opens nothing."""
        job.began = True
        self._opening(event)
        if not self._is_open:
            self._is_open = True
            size = int(event.get("width") or 0), int(event.get("height") or 0)
            asked = ResolvedRequest(prompts=(job.order.body["prompt"],), seed=job.order.body["seed"], size=size)
            checked = event.get("checked") is not False
            self._on_event(Opened(str(event.get("provider")), asked, self._plan.pictures, checked, safety=True))

    def _step(self, job: _Job, event: JsonView) -> None:
        total, number = int(event["steps"]), int(event["step"])
        if number <= job.step:
            job.step = 0
        # A server leaves out steps that nobody has fetched when the next is done.
        for one in range(job.step + 1, number + 1):
            step = Step(
                job.before + int(event["batch"]), self._batches, int(event.get("attempt") or 1), one, total,
                float(event.get("timestep") or 0), cast("Preview", None),
            )  # fmt: skip
            body = job.order.body
            size = (body["width"], body["height"]) if "width" in body else None
            self._on_event(StepDone(step, size, event.get("prompts") or [body["prompt"]]))
        job.step = number

    def _picture(self, job: _Job, view: PictureView) -> None:
        """Fetch and write a picture, once."""
        from olivelike.runtime.pictures.writer import SheetPicture

        if view.id in job.seen or job is not next(iter(self._jobs.values())):
            return  # Several workers draw at once; files are written in the order of the plan.
        job.seen.add(view.id)
        record = self._record(view)
        if not job.began:
            facts = {"provider": record.provider, "width": view.width, "height": view.height}
            self._open(job, {**facts, "checked": view.flagged is not None})
        image = _decoded(self._server.picture(view.id), self._server.url)
        seed = record.seed or 0
        first = seed if view.first_seed is None else view.first_seed
        job.batch.append(Picture(image, record.prompt, seed, first, view.flagged, view.attempts))
        self.first = self.first or record
        with self._while_writing():
            self.written.append(self._writer.save(image, record))
            self._on_event(PictureWritten(job.batch[-1], record.prompt, self.written[-1]))
        if view.flagged:
            self.flagged.append(first)
        if self._sheet:
            self.cells.append(SheetPicture(image, record.prompt, f"seed {seed}"))

    def _end_batch(self, job: _Job, event: JsonView) -> None:
        number = job.before + int(event["batch"])
        pictures, job.batch, job.step = tuple(job.batch), [], 0
        self._on_event(Batch(number, self._batches, pictures, float(event.get("seconds") or 0), ""))

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
            raise Interrupted(f"{self._server.url}: the job was cancelled there; {len(self.written)} pictures written")
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


@dataclass(frozen=True)
class _Named:
    """A LoRA at the server."""

    name: str
    text: str
    """With its weight."""
    hash: str = ""
    unet_weight: float = 1.0
    few_steps: FewSteps | None = None

    def __str__(self) -> str:
        return self.text


def _decoded(data: bytes, url: str) -> Image.Image:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=["PNG"])
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise MissingError(f"{url}: sent a picture that can't be read: {error}") from error
    return image.convert("RGB")
