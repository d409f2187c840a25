"""A job as the child draws it: batch after batch, each picture into its file at once."""

from __future__ import annotations

import base64
import contextlib
import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike.errors import Interrupted, StoreError
from olivelike.runtime.pictures.picture_record import PictureRecord, a1111_text, encode_picture
from olivelike.runtime.pictures.preview_file import Pace, side_by_side
from olivelike.runtime.pictures.writer import SheetPicture, picture_sheet
from olivelike.runtime.pipeline.request import Picture, require_safe
from olivelike.runtime.sessions.session import ENGINE_CALLS
from olivelike.serve.drawing.planning import OrderPlan, Part, remaining
from olivelike.serve.gallery.picture_id import picture_id

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike._untrusted import Json, JsonView
    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.pipeline.pipeline import Pipeline
    from olivelike.serve.drawing.warm import WarmPipelines

_PREVIEW_SECONDS: Final = 0.12
_EVENT_SECONDS: Final = 0.1
_STEP_SECONDS: Final = 1.0
"""Seconds that a step may take after a cancel; then its engine is ended."""
_LARGE: Final = 256 * 256
"""Pixels of a batch whose steps may take so long; calls that can be ended take 40 µs more each."""


@dataclass(frozen=True)
class DrawMessage:
    """A job to be drawn."""

    job: str
    order: JsonView
    models: Mapping[str, str]
    gallery: str
    folder: str
    """Below the gallery."""
    first: int
    """Number of the first picture's file."""
    done: Mapping[str, str]
    """Files of pictures that are there, below the gallery, by their number in the job."""
    safety: bool
    reads: Sequence[str] = ()
    """Files and folders that drawing it opens."""


class JobDrawing:
    """A job that is being drawn."""

    def __init__(
        self,
        message: DrawMessage,
        plan: Callable[[str, JsonView, Mapping[str, str]], OrderPlan],
        warm: WarmPipelines,
        tell: Callable[..., object],
        previews: Callable[[], bool],
        *,
        metadata: bool,
    ) -> None:
        """Set a job up.

        Args:
            plan: returns the plan of a job, by its name, its order and the folders of models.
            tell: tells the parent, with a word for what and its values.
            previews: says whether anybody wants to see steps.
        """
        self.message = message
        self._plan, self._warm, self._tell, self._previews = plan, warm, tell, previews
        self._metadata = metadata
        self._stopped = threading.Event()
        self._skips = False
        self._end_engine: threading.Timer | None = None
        self._files = {int(number): path for number, path in message.done.items()}
        self._opened: tuple[object, ...] = ()
        self._batches = self._batch = self._steps = self._steps_done = 0
        self._began: float | None = None
        self._told = 0.0
        self._pace = Pace(_PREVIEW_SECONDS)

    def stop(self, *, skip: bool) -> None:
        """End the job, or its batch, from another thread: before its next step, or in it if that takes long."""
        self._skips = skip
        self._stopped.set()
        if not skip and self._end_engine is None:
            self._end_engine = threading.Timer(_STEP_SECONDS, ENGINE_CALLS.end)
            self._end_engine.daemon = True
            self._end_engine.start()

    def draw(self) -> None:
        """Draw all that is not there yet."""
        message = self.message
        try:
            plan = self._plan(message.job, message.order, message.models)
            self._batches, self._steps = plan.batches, plan.steps
            flagged: list[int] = []
            for part in plan.parts:
                flagged += self._draw_part(part, plan)
            if (message.order["sheet"] or message.order["x"] or message.order["y"]) and self._files:
                self._draw_sheet(plan)
            require_safe(len(self._files), flagged, message.order["retry_unsafe"])
        finally:
            if self._end_engine is not None:
                self._end_engine.cancel()
            if ENGINE_CALLS.ended:
                self._warm.close()  # OpenVINO's networks can't be run any more.

    def _draw_part(self, part: Part, plan: OrderPlan) -> list[int]:
        size, total = part.job.request.batch_size, len(part.numbers)
        there = next((place for place, number in enumerate(part.numbers) if number not in self._files), total)
        place = total if there == total else there - there % size
        self._pass(part, place // size if place < total else part.job.batches)
        if place == total:
            return []
        if self._stopped.is_set():
            raise Interrupted("cancelled between two batches")
        width, height = part.job.request.size
        ENGINE_CALLS.watched = width * height * size >= _LARGE
        pipeline = self._open(part, plan)
        record = replace(part.job.record, provider=pipeline.provider)
        self._began = self._began or time.monotonic()
        flagged: list[int] = []
        while place < total:
            request = remaining(part.job, place)
            try:
                for batch in pipeline.batches(
                    request, on_step=partial(self._on_step, part, place), cancel=self._stopped
                ):
                    for number, picture in zip(part.numbers[place:], batch.pictures, strict=False):
                        if number not in self._files:
                            self._save(number, picture, part, record)
                        flagged += [picture.first_seed] if picture.flagged else []
                    place += size
                    self._pass(part, 1)
                    self._tell(
                        "batch", job=self.message.job, batch=self._batch, batches=self._batches,
                        pictures=len(batch.pictures), passed=batch.passed, seconds=round(batch.seconds, 4),
                    )  # fmt: skip
            except Interrupted:
                if not self._skips:
                    raise
                self._skips = False
                self._stopped.clear()
                place += size
                self._pass(part, 1)
        return flagged

    def _open(self, part: Part, plan: OrderPlan) -> Pipeline:
        job, message = part.job, self.message

        loras = [{"name": lora.name, "text": str(lora)} for lora in job.loras]

        def on_opening() -> None:
            self._tell("opening", job=message.job, model=part.folder.name, loras=loras)

        pipeline = self._warm.get(
            part.folder, job.loras, part.plan.lora_files, safety=message.safety, on_opening=on_opening
        )
        if self._opened != (part.folder, job.loras):
            self._opened = part.folder, job.loras
            width, height = job.request.size
            self._tell(
                "opened", job=message.job, provider=pipeline.provider, width=width, height=height,
                checked=pipeline.checks_safety, safety=message.safety, seed=job.request.seed,
                pictures=len(plan.cells), model=part.folder.name, loras=loras,
            )  # fmt: skip
        return pipeline

    def _pass(self, part: Part, batches: int) -> None:
        self._batch += batches
        self._steps_done += batches * part.steps

    def _on_step(self, part: Part, place: int, step: Step) -> None:
        now = time.monotonic()
        if step.number not in (1, step.total) and now - self._told < _EVENT_SECONDS:
            return  # Who is told of each of many short steps takes the processor from them.
        self._told = now
        assert self._began is not None
        done = self._steps_done + part.steps * step.number / step.total
        left = (now - self._began) / done * (self._steps - done)
        more: Json = {}
        if step.number == 1:
            first = place + (step.batch - 1) * part.job.request.batch_size
            more["prompts"] = part.job.prompts(first // part.job.request.batch_size + 1)
        if self._previews() and (step.number == 1 or self._pace.due()):
            more["preview"] = data_url(side_by_side(step.preview.show()))
            self._pace.took(time.monotonic() - now)
        self._tell(
            "step", job=self.message.job, step=step.number, steps=step.total, batch=self._batch + 1,
            batches=self._batches, attempt=step.attempt, timestep=step.timestep, done=round(done),
            steps_total=self._steps, eta=round(left, 2), **more,
        )  # fmt: skip

    def _save(self, number: int, picture: Picture, part: Part, record: PictureRecord) -> None:
        record = replace(
            record, prompt=part.job.written[picture.prompt], seed=picture.seed, variation_seed=picture.variation_seed
        )
        name = f"{self.message.first + number:05}-{picture.seed}.png"
        values = {
            "number": number, "seed": picture.seed, "first_seed": picture.first_seed, "attempts": picture.attempts,
            "flagged": picture.flagged, "record": record.to_json(),
        }  # fmt: skip
        self._files[number] = self._write("picture", name, picture.image, record, values)

    def _draw_sheet(self, plan: OrderPlan) -> None:
        from PIL import Image

        gallery = Path(self.message.gallery)
        plotted = bool(self.message.order["x"] or self.message.order["y"])
        pictures, across = [], []
        for number, cell in enumerate(plan.cells):
            across.append(cell.across)
            with contextlib.suppress(FileNotFoundError):  # It may have been deleted meanwhile.
                if number in self._files:
                    with Image.open(gallery / self._files[number]) as image:
                        pictures.append(SheetPicture(image.convert("RGB"), cell.down, cell.across))
        if not pictures:
            return
        if not plotted:
            pictures = [replace(one, caption=f"{number + 1}") for number, one in enumerate(pictures)]
        columns = len(dict.fromkeys(across)) if plotted else 4
        record = replace(plan.parts[0].job.record, seed=self.message.order["seed"])
        name = f"{self.message.first + len(plan.cells):05}-sheet.png"
        sheet = picture_sheet(pictures, columns)
        values = dict.fromkeys(("number", "seed", "first_seed", "flagged", "record"))
        self._write("sheet", name, sheet, record, {**values, "attempts": 1})

    def _write(self, answer: str, name: str, image: Image, record: PictureRecord, values: JsonView) -> str:
        """Write a picture and tell the parent; return its path below the gallery."""
        path = f"{self.message.folder}/{name}"
        data = encode_picture(image, ".png", record, sheet=answer == "sheet", metadata=self._metadata)
        try:
            write_whole(Path(self.message.gallery, path), data, durable=False)
        except OSError as error:
            raise StoreError(
                f"{path}: the picture can't be written: {error.strerror or error}; free some space, or start the "
                "server with another --gallery"
            ) from error
        self._tell(
            answer, job=self.message.job, id=picture_id(path, data), path=path, width=image.width, height=image.height,
            prompt=record.prompt, model=record.model, parameters=a1111_text(record), **values,
        )  # fmt: skip
        return path


def data_url(image: Image) -> str:
    """Return a small picture as text that a page can show."""
    data = io.BytesIO()
    image.save(data, "WEBP", quality=80, method=0)
    return f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
