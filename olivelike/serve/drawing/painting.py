"""The child process that draws: it plans orders and answers questions while a thread draws one job after another.

Jobs are drawn as `generate` does, into a gallery in place of files. The parent is `painter.py`; what they tell each
other are JSON objects, one a line.
"""

from __future__ import annotations

import contextlib
import io
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from olivelike._files import identity_at, write_whole
from olivelike._json_child import serve
from olivelike._untrusted import Json, JsonView
from olivelike.errors import Interrupted, OlivelikeError, SessionError, StoreError
from olivelike.runtime.jobs.job_drawing import (
    Event,
    JobDrawing,
    Opened,
    Opening,
    PictureWritten,
    SheetWritten,
    StepDone,
)
from olivelike.runtime.pictures.picture_reading import open_image
from olivelike.runtime.pictures.picture_record import (
    PNG_STRATEGY,
    PictureRecord,
    PictureSigner,
    a1111_text,
    encode_picture,
)
from olivelike.runtime.pictures.sheets import SheetPicture, picture_sheet, plot_sheet
from olivelike.runtime.pipeline.request import LABELS, Picture
from olivelike.runtime.sessions.providers import CPU
from olivelike.runtime.sessions.session import ENGINE_CALLS
from olivelike.serve.drawing.planning import Files, OrderPlan, is_repeatable, plan_order, repeated
from olivelike.serve.drawing.plot_texts import script_fields
from olivelike.serve.drawing.plots import heads
from olivelike.serve.drawing.warm import SessionChoice, WarmPipelines
from olivelike.serve.gallery.picture_id import picture_id
from olivelike.serve.orders import Order

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.runtime.jobs.job_plan import Job
    from olivelike.runtime.pictures.upscaling import Upscaler
    from olivelike.runtime.pipeline.pipeline import Pipeline

Answer = Callable[[JsonView], None]
_PLANS: Final = 4
"""Plans that are kept until they are drawn; others are planned again, in milliseconds."""
_GROWN: Final = 3
"""Growth of memory, in times that of libraries and open folders with `_ROOM` beside it, that is too much: a large
picture leaves memory behind, but the next one uses it again."""
_ROOM: Final = 1 << 30
_EVENT_SECONDS: Final = 0.1
_LARGE: Final = 256 * 256
"""Pixels of a batch whose steps may take so long; calls that can be ended take 40 µs more each."""
_LOG: Final = logging.getLogger("olivelike.serve")


@dataclass(frozen=True)
class DrawMessage:
    """A job to be drawn."""

    job: str
    order: JsonView
    models: Mapping[str, str]
    gallery: str
    folder: str
    """Below the gallery; of a job that the parent has not written down, not known yet."""
    first: int
    """Number of the first picture's file; likewise."""
    done: Mapping[str, str]
    """Files of pictures that are there, below the gallery, by their number in the job."""
    flagged: Sequence[int]
    """Numbers of those that the safety checker flagged."""
    safety: bool
    reads: Sequence[str] = ()
    """Files and folders that drawing it opens."""


class Painting:
    """The state of the child."""

    def __init__(self, settings: JsonView, answer: Answer) -> None:
        self._answer, self._lock = answer, threading.Lock()
        self._files = {
            "uploads": Path(settings["uploads"]),
            "loras": tuple(map(Path, settings["loras"])),
            "wildcards": tuple(map(Path, settings["wildcards"])),
            "upscalers": tuple(map(Path, settings["upscalers"])),
            "allow_pickle": settings["allow_pickle"],
        }
        self.metadata: bool = settings["metadata"]
        self.signer = _signer(*settings["signing"]) if settings["signing"] else None
        self.warm = WarmPipelines(SessionChoice(**_tuples(settings["sessions"])), settings["memory_limit"])
        self._upscaler: tuple[tuple[Path, tuple[int, ...] | None], Upscaler] | None = None
        """The one that was used last, by its file."""
        self._enlarging: dict[int, threading.Event] = {}
        """What ends enlargements, by the numbers of their questions."""
        self._at_rest = _memory()
        self._plans: dict[str, OrderPlan] = {}
        self._last: OrderPlan | None = None
        """The plan that was made last, if another one can be made of it."""
        self._models: set[Path] = set()
        """Folders that were asked for."""
        self._jobs: queue.SimpleQueue[OrderDrawing | Callable[[], object]] = queue.SimpleQueue()
        self._drawing: OrderDrawing | None = None
        self.previews = False
        threading.Thread(target=self._draw_all, name="drawing", daemon=True).start()

    def handle(self, message: JsonView) -> None:
        """Do what the parent asks for, but for drawing, which another thread does."""
        match message["do"]:
            case "plan":
                self._answer_by(self._planned, message)
            case "enlarge":
                number = message["number"]
                self._enlarging[number] = threading.Event()
                self._jobs.put(lambda: self._answer_by(partial(self._enlarged, number), message))
            case "end":
                if (ending := self._enlarging.get(message["number"])) is not None:
                    ending.set()
            case "warm":
                folder, safety = Path(message["folder"]), message["safety"]
                self._jobs.put(lambda: self.warm.get(folder, (), None, safety=safety))
            case "unload":
                self._jobs.put(self._unload)
            case "draw":
                self._begin(message["draw"], is_kept=bool(message["draw"]["folder"]))
            case "previews":
                self.previews = message["wanted"]
            case "cancel" | "skip":
                drawing = self._drawing
                if drawing is not None and drawing.message.job == message["job"]:
                    drawing.jobs.stop(skip=message["do"] == "skip")
                    drawing.is_decided.set()
            case "keep":
                drawing = self._drawing
                if drawing is not None and drawing.message.job == message["job"]:
                    drawing.place = message["folder"], message["first"]
                    drawing.is_decided.set()

    def tell(self, answer: str, **values: Any) -> None:
        """Tell the parent, from any thread."""
        with self._lock:
            self._answer({"answer": answer, **values})

    def tell_of(self, job: str, event: Event, **more: Any) -> None:
        """Tell the parent what has happened to a job, from any thread."""
        self.tell(event.kind, job=job, **event.to_json(), **more)

    def plan(self, job: str, order: JsonView, models: Mapping[str, str]) -> OrderPlan:
        """Return the plan of a job, made now if it is not kept."""
        folders = {name: Path(folder) for name, folder in models.items()}
        self._models.update(folders.values())
        found = self._plans.pop(job, None)
        return found or self._new_plan(Order.model_validate(order), Files(models=folders, **self._files))

    def _new_plan(self, order: Order, files: Files) -> OrderPlan:
        last, self._last = self._last, None
        plan = (repeated(last, order, files) if last is not None else None) or plan_order(order, files)
        self._last = plan if is_repeatable(plan) else None
        return plan

    def _answer_by(self, work: Callable[..., Json], message: JsonView) -> None:
        try:
            value = work(**message["arguments"])
        except OlivelikeError as error:
            self._refuse(message, error.word, str(error))
        except MemoryError:
            self._close()
            self._refuse(message, "session", "ran out of memory; take a smaller picture")
        except Exception as error:  # noqa: BLE001  (the boundary of the process)
            _LOG.exception("%s failed", message["do"])
            self._refuse(message, "olivelike", _bug(error))
        else:
            self.tell("told", number=message["number"], value=value)

    def _refuse(self, message: JsonView, word: str, why: str) -> None:
        self.tell("refused", number=message["number"], word=word, message=self._placeless(why))

    def _placeless(self, text: str) -> str:
        """Return a message without the places of the operator's folders, which are not the clients' to know."""
        named = (folder for kind in ("loras", "wildcards", "upscalers") for folder in self._files[kind])
        folders = [self._files["uploads"], *named, *self._models]
        usual = [place / "loras" for place in (Path.cwd(), *(folder.parent for folder in self._models))]
        for folder in sorted({str(folder) for folder in (*folders, *usual)}, key=len, reverse=True):
            text = text.replace(folder, Path(folder).name)
        return text

    def _begin(self, message: JsonView, *, is_kept: bool) -> None:
        self._drawing = OrderDrawing(DrawMessage(**message), self, is_kept=is_kept)
        self._jobs.put(self._drawing)

    def _planned(self, job: str, order: JsonView, models: Mapping[str, str], draw: JsonView | None = None) -> Json:
        plan = self.plan(job, order, models)
        self._plans[job] = plan
        if draw is not None:
            self._begin({"job": job, "order": order, "models": models, **draw}, is_kept=False)
        while len(self._plans) > _PLANS:
            del self._plans[next(iter(self._plans))]
        return {
            "pictures": len(plan.cells), "batches": plan.batches, "steps": plan.steps, "notes": list(plan.notes),
            "reads": plan.reads,
        }  # fmt: skip

    def _enlarged(self, number: int, upload: str, upscaler: str, folder: str | None) -> Json:
        try:
            return self._enlarge(number, upload, upscaler, folder)
        finally:
            del self._enlarging[number]

    def _enlarge(self, number: int, upload: str, upscaler: str, folder: str | None) -> Json:
        from olivelike.runtime.pictures.upscaling import Upscaler
        from olivelike.serve.gallery.uploads import add_upload

        ending, told = self._enlarging[number], 0.0

        def before_tile(done: int, total: int) -> None:
            nonlocal told
            if ending.is_set():
                raise Interrupted("cancelled between two tiles")
            if time.monotonic() - told >= _EVENT_SECONDS:
                told = time.monotonic()
                self.tell("enlarging", number=number, done=done, total=total)

        path = Path(upscaler)
        key = path, identity_at(path)
        if self._upscaler is None or self._upscaler[0] != key:
            self._upscaler = key, Upscaler(path, self.warm.settings(None if folder is None else Path(folder)))
        self.tell("upscaler", path=upscaler, identity=key[1], scale=self._upscaler[1].scale)
        image, _ = open_image(self._files["uploads"] / f"{upload}.png")
        buffer = io.BytesIO()
        self._upscaler[1].enlarge(image, before_tile).save(buffer, "PNG", compress_type=PNG_STRATEGY)
        return {"upload": add_upload(self._files["uploads"], buffer.getvalue()).id}

    def _unload(self) -> None:
        self._close()
        self.tell("unloaded", folders=self.warm.folders)

    def _close(self) -> None:
        self._upscaler = None
        self.warm.close()

    def _draw_all(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                with ENGINE_CALLS.watch():
                    if isinstance(job, OrderDrawing):
                        job.draw()
                    else:
                        job()
            except Interrupted:
                self._end(job, "cancelled")
            except (SessionError, MemoryError) as error:
                self._close()  # Memory that the networks hold may be what lacks.
                self._fail(
                    job, str(error) or "ran out of memory; make the picture smaller, or fewer at once", "session"
                )
            except OlivelikeError as error:
                self._fail(job, str(error), error.word)
            except Exception as error:  # noqa: BLE001  (the boundary of the process)
                _LOG.exception("drawing failed")
                self._fail(job, _bug(error), "olivelike")
            else:
                self._end(job, "done")

    def _fail(self, job: OrderDrawing | Callable[[], object], message: str, word: str) -> None:
        self._end(job, "failed", word=word, message=self._placeless(message))

    def _end(self, job: OrderDrawing | Callable[[], object], answer: str, **values: Any) -> None:
        if not isinstance(job, OrderDrawing):
            self.tell("warmed", folders=self.warm.folders, **values)
            return
        if self._drawing is job:
            self._drawing = None
        grown = _memory() > _GROWN * (self._at_rest + self.warm.bytes) + _ROOM
        self.tell(answer, job=job.message.job, folders=self.warm.folders, grown=grown, **values)


class OrderDrawing:
    """An order that is being drawn into the gallery; the parent is told of it."""

    def __init__(self, message: DrawMessage, painting: Painting, *, is_kept: bool) -> None:
        from olivelike.serve.drawing.previews import Previews

        self.message = message
        self.place = (message.folder, message.first) if is_kept else None
        """Folder below the gallery and number of the first picture's file, once the parent has written the job down."""
        self.is_decided = threading.Event()
        """Set once it has, or lets the job go; until then no file is written, which would be nobody's."""
        self._painting = painting
        self._files = {int(number): path for number, path in message.done.items()}
        self._flagged = set(message.flagged)
        self.jobs = JobDrawing(self, safety=message.safety, there=self._files)
        self._told = 0.0
        # Nothing here holds this order, so that it is freed with its last name.
        self._tell = partial(painting.tell_of, message.job)
        self._previews = Previews(self._tell)
        self._is_on_cpu = False

    def draw(self) -> None:
        """Draw all that is not there yet."""
        try:
            self._plan = self._painting.plan(self.message.job, self.message.order, self.message.models)
            self.jobs.draw(self._plan.jobs)
        except Interrupted:
            if self._files and Order.model_validate(self.message.order).has_heads:
                self._painting.tell("finishing", job=self.message.job)
                self.keep_sheet()
            raise
        finally:
            self._previews.close()
            if ENGINE_CALLS.ended:
                self._painting.warm.close()  # OpenVINO's networks can't be run any more.

    def pipeline_for(self, job: Job, on_opening: Callable[[], None]) -> Pipeline:
        """Return a pipeline, perhaps one that is open from earlier jobs."""
        width, height = job.request.size
        ENGINE_CALLS.watched = width * height * job.request.batch_size >= _LARGE
        warm, safety = self._painting.warm, self.message.safety
        return warm.get(job.folder, job.loras, job.lora_files, safety=safety, on_opening=on_opening)

    def tell(self, event: Event) -> None:
        """Tell the parent of it, and of steps no more than anybody can see."""
        if isinstance(event, StepDone):
            now = time.monotonic()
            if event.step not in (1, event.steps) and now - self._told < _EVENT_SECONDS:
                return  # Who is told of each of many short steps takes the processor from them.
            self._told = now
            event = event if event.step == 1 else replace(event, prompts=())
            # GPUs have one queue, and graphs that were recorded there allow no other calls.
            self._previews.follow(event, wanted=self._painting.previews, beside=self._is_on_cpu)
        elif isinstance(event, Opening | Opened):
            event = replace(event, model=Path(event.model).name)
            self._is_on_cpu = isinstance(event, Opened) and event.provider == CPU
        self._tell(event, **({"folders": self._painting.warm.folders} if isinstance(event, Opened) else {}))

    def keep(self, number: int, picture: Picture, record: PictureRecord) -> None:
        """Write a picture under its number."""
        self._previews.hide()
        path, more = self._write(number, str(picture.seed), picture.image, record)
        self._files[number] = path
        if picture.flagged:
            self._flagged.add(number)
        written = PictureWritten(
            path=path, prompt=record.prompt, seed=picture.seed, first_seed=picture.first_seed,
            attempts=picture.attempts, flagged=picture.flagged,
        )  # fmt: skip
        self._tell(written, **more, number=number, record=record.to_json())

    def keep_sheet(self) -> None:
        """Lay the pictures that are still there out on a sheet, if the order asks for one."""
        from PIL import Image

        order, gallery = Order.model_validate(self.message.order), Path(self.message.gallery)
        if not order.has_heads and not order.sheet:
            return
        found: dict[tuple[int, int, int], list[SheetPicture]] = {}
        for number, cell in enumerate(self._plan.cells):
            path = self._files.get(number)
            with contextlib.suppress(FileNotFoundError):  # It may have been deleted meanwhile.
                if path is not None:
                    with Image.open(gallery / path) as image:
                        # A file's name is its number and its seed.
                        seed = f"{LABELS['seed']} {Path(path).stem.partition('-')[2]}"
                        shown = SheetPicture(image.convert("RGB"), "", seed, number in self._flagged)
                        found.setdefault(cell.place, []).append(shown)
        if not found:
            return
        sheet = plot_sheet(found, heads(order)) if order.has_heads else picture_sheet(found[0, 0, 0])
        first = self._plan.jobs[0].record
        record = replace(first, seed=order.seed, **script_fields(order, first.other))
        path, more = self._write(len(self._plan.cells), "sheet", sheet, record)
        nothing = dict.fromkeys(("number", "seed", "first_seed", "flagged", "record"))
        self._tell(SheetWritten(path=path), **more, **nothing, prompt=record.prompt, attempts=1)

    def _write(self, number: int, name: str, image: Image, record: PictureRecord) -> tuple[str, Json]:
        """Write a picture of a job's; return its path below the gallery, and what the gallery holds of it."""
        if self.place is None:
            self.is_decided.wait()
            if self.place is None:
                raise Interrupted("let go before it was written down")
        folder, first = self.place
        path = f"{folder}/{first + number:05}-{name}.png"
        data = encode_picture(
            image, ".png", record, sheet=name == "sheet", metadata=self._painting.metadata, signer=self._painting.signer
        )
        try:
            write_whole(Path(self.message.gallery, path), data, durable=False)
        except OSError as error:
            raise StoreError(
                f"{path}: the picture can't be written: {error.strerror or error}; free some space, or start the "
                "server with another --gallery"
            ) from error
        return path, {
            "id": picture_id(path, data), "width": image.width, "height": image.height, "model": record.model,
            "parameters": a1111_text(record),
        }  # fmt: skip


def _signer(certificate: str, key: str) -> PictureSigner | None:
    from olivelike.runtime.pictures.picture_signature import open_picture_signer

    return open_picture_signer(Path(certificate), Path(key))


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def _tuples(values: JsonView) -> Json:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _bug(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (at {Path(place.filename).name}:{place.lineno}); this is a bug"


def main() -> None:
    """Be the child: the first message has its settings."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    painting: list[Painting] = []

    def handle(message: Json, answer: Answer) -> None:
        if painting:
            painting[0].handle(message)
            return
        painting.append(Painting(message, answer))
        painting[0].tell("ready")

    serve(handle)


if __name__ == "__main__":
    main()
