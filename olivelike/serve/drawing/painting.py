"""The child process that draws: it plans orders and answers questions while a thread draws one job after another.

Its parent is `painter.py`; what they tell each other are JSON objects, one a line.
"""

from __future__ import annotations

import io
import logging
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from olivelike._files import identity_at
from olivelike._json_child import serve
from olivelike._light_diffusers import light_diffusers
from olivelike._untrusted import Json, JsonView
from olivelike.errors import Interrupted, OlivelikeError, SessionError, UsageError
from olivelike.runtime.pictures.picture_reading import MOST_PIXELS, open_image
from olivelike.runtime.sessions.session import ENGINE_CALLS
from olivelike.serve.drawing.job_drawing import DrawMessage, JobDrawing
from olivelike.serve.drawing.planning import Files, OrderPlan, plan_order
from olivelike.serve.drawing.warm import SessionChoice, WarmPipelines
from olivelike.serve.orders import Order

if TYPE_CHECKING:
    from olivelike.runtime.pictures.upscaling import Upscaler

Answer = Callable[[JsonView], None]
_PLANS: Final = 4
"""Plans that are kept until they are drawn; others are planned again, in milliseconds."""
_GROWN: Final = 3
"""Growth of memory, in times that of libraries and open folders with `_ROOM` beside it, that is too much: a large
picture leaves memory behind, but the next one uses it again."""
_ROOM: Final = 1 << 30
_LOG: Final = logging.getLogger("olivelike.serve")


class Painting:
    """The state of the child."""

    def __init__(self, settings: JsonView, answer: Answer) -> None:
        self._answer, self._lock = answer, threading.Lock()
        self._files = {
            "uploads": Path(settings["uploads"]),
            "loras": tuple(map(Path, settings["loras"])),
            "wildcards": tuple(map(Path, settings["wildcards"])),
            "allow_pickle": settings["allow_pickle"],
        }
        self._metadata: bool = settings["metadata"]
        self._warm = WarmPipelines(SessionChoice(**_tuples(settings["sessions"])), settings["memory_limit"])
        self._upscaler: tuple[tuple[Path, tuple[int, ...] | None], Upscaler] | None = None
        """The one that was used last, by its file."""
        self._at_rest = _memory()
        self._plans: dict[str, OrderPlan] = {}
        self._models: set[Path] = set()
        """Folders that were asked for."""
        self._jobs: queue.SimpleQueue[JobDrawing | Callable[[], object]] = queue.SimpleQueue()
        self._drawing: JobDrawing | None = None
        self.previews = False
        threading.Thread(target=self._draw_all, name="drawing", daemon=True).start()

    def handle(self, message: JsonView) -> None:
        """Do what the parent asks for, but for drawing, which another thread does."""
        match message["do"]:
            case "plan":
                self._answer_by(self._planned, message)
            case "enlarge":
                self._jobs.put(lambda: self._answer_by(self._enlarged, message))
            case "warm":
                folder, safety = Path(message["folder"]), message["safety"]
                self._jobs.put(lambda: self._warm.get(folder, (), None, safety=safety))
            case "unload":
                self._jobs.put(self._close)
            case "draw":
                self._drawing = JobDrawing(
                    DrawMessage(**message["draw"]), self.plan, self._warm, self.tell, lambda: self.previews,
                    metadata=self._metadata,
                )  # fmt: skip
                self._jobs.put(self._drawing)
            case "previews":
                self.previews = message["wanted"]
            case "cancel" | "skip":
                drawing = self._drawing
                if drawing is not None and drawing.message.job == message["job"]:
                    drawing.stop(skip=message["do"] == "skip")

    def tell(self, answer: str, **values: Any) -> None:
        """Tell the parent, from any thread."""
        with self._lock:
            self._answer({"answer": answer, **values})

    def plan(self, job: str, order: JsonView, models: Mapping[str, str]) -> OrderPlan:
        """Return the plan of a job, made now if it is not kept."""
        folders = {name: Path(folder) for name, folder in models.items()}
        self._models.update(folders.values())
        found = self._plans.pop(job, None)
        return found or plan_order(Order.model_validate(order), Files(models=folders, **self._files))

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
        folders = [self._files["uploads"], *self._files["loras"], *self._files["wildcards"], *self._models]
        usual = [place / "loras" for place in (Path.cwd(), *(folder.parent for folder in self._models))]
        for folder in sorted({str(folder) for folder in (*folders, *usual)}, key=len, reverse=True):
            text = text.replace(folder, Path(folder).name)
        return text

    def _planned(self, job: str, order: JsonView, models: Mapping[str, str]) -> Json:
        plan = self.plan(job, order, models)
        self._plans[job] = plan
        while len(self._plans) > _PLANS:
            del self._plans[next(iter(self._plans))]
        return {
            "pictures": len(plan.cells), "batches": plan.batches, "steps": plan.steps, "notes": list(plan.notes),
            "reads": plan.reads,
        }  # fmt: skip

    def _enlarged(self, upload: str, upscaler: str, folder: str | None) -> Json:
        from olivelike.runtime.pictures.upscaling import Upscaler
        from olivelike.serve.gallery.uploads import add_upload

        path = Path(upscaler)
        self._models.add(path.parent)
        key = path, identity_at(path)
        if self._upscaler is None or self._upscaler[0] != key:
            self._upscaler = key, Upscaler(path, self._warm.settings(None if folder is None else Path(folder)))
        network = self._upscaler[1]
        image, _ = open_image(self._files["uploads"] / f"{upload}.png")
        if image.width * image.height * network.scale**2 > MOST_PIXELS:
            raise UsageError(
                f"{path.stem} makes {image.width * network.scale}x{image.height * network.scale} pixels of this "
                f"picture, more than the {MOST_PIXELS:,} that are taken here; send a smaller one"
            )
        buffer = io.BytesIO()
        network.enlarge(image).save(buffer, "PNG", compress_level=1)
        return {"upload": add_upload(self._files["uploads"], buffer.getvalue()).id}

    def _close(self) -> None:
        self._upscaler = None
        self._warm.close()

    def _draw_all(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                with ENGINE_CALLS.watch():
                    if isinstance(job, JobDrawing):
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

    def _fail(self, job: JobDrawing | Callable[[], object], message: str, word: str) -> None:
        self._end(job, "failed", word=word, message=self._placeless(message))

    def _end(self, job: JobDrawing | Callable[[], object], answer: str, **values: Any) -> None:
        if not isinstance(job, JobDrawing):
            self.tell("warmed", folders=self._warm.folders, **values)
            return
        if self._drawing is job:
            self._drawing = None
        grown = _memory() > _GROWN * (self._at_rest + self._warm.bytes) + _ROOM
        self.tell(answer, job=job.message.job, folders=self._warm.folders, grown=grown, **values)


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
        with light_diffusers():  # What takes seconds, before two threads need it.
            import diffusers
            import torch  # noqa: F401

            diffusers.DDIMScheduler  # noqa: B018
        painting.append(Painting(message, answer))
        painting[0].tell("ready")

    serve(handle)


if __name__ == "__main__":
    main()
