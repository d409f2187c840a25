"""One job after another: from the queue to the process that draws, and what it tells into journal, gallery and feed."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from olivelike.errors import OlivelikeError
from olivelike.serve.catalogue import Catalogue
from olivelike.serve.drawing.painter import ChildEnded, Painter
from olivelike.serve.drawing.plots import cells
from olivelike.serve.drawing.waiting import FairQueue
from olivelike.serve.feed import Feed
from olivelike.serve.gallery.gallery import INDEX, UPLOADS, Gallery, PictureRow
from olivelike.serve.gallery.library import picture_view
from olivelike.serve.gallery.uploads import prune_uploads
from olivelike.serve.orders import Order
from olivelike.serve.settings import ServeSettings
from olivelike.serve.views import Event

_INSIDE: Final = frozenset({"answer", "folder", "folders"})
"""What the process that draws tells the server alone."""
_TIDYING_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Progress:
    """How far the running job is."""

    step: int
    steps_total: int
    batch: int
    eta: float | None


class Dispatcher:
    """The queue, and the job that is drawn."""

    def __init__(self, settings: ServeSettings, catalogue: Catalogue, gallery: Gallery, feed: Feed) -> None:
        self._settings, self._catalogue, self._gallery, self._feed = settings, catalogue, gallery, feed
        self._journal = gallery.journal
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._why: dict[str, Any] | None = None
        """Why the running job was ended, if it was not its client who did."""
        self._tidied = 0.0
        self.waiting = FairQueue()
        self.running: str | None = None
        self.progress: Progress | None = None
        self.open_folders: list[str] = []
        """Paths of those that the process that draws keeps open."""
        self.counts: Counter[str] = Counter()
        """Jobs by how they ended, `pictures`, `seconds` of drawing, and `starts` of the process that draws."""
        self.painter = Painter(self._painting_settings(), gallery.folder / INDEX / "painter.log", self._hear)

    def start(self) -> None:
        """Queue again what was left unfinished, and begin to draw."""
        for row in self._journal.unfinished():
            if row.kind == "pictures" and row.state == "drawing":
                self.waiting.push_front(row.id)
                self._journal.update(row.id, state="queued")
            elif row.kind == "pictures":
                self.waiting.push(row.id, row.client)
        self.painter.start()
        self._task = asyncio.create_task(self._draw_all(), name="drawing")

    async def close(self) -> None:
        """Stop drawing; the running job goes on at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self.painter.close)

    def push(self, job: str, client: str) -> None:
        """Queue a job that is in the journal."""
        self.waiting.push(job, client)
        self._came.set()

    def cancel(self, job: str) -> bool:
        """Take a job out of the queue, or end it; say whether that is done already."""
        if self.waiting.remove(job):
            self._journal.end(job, "cancelled")
            self.counts["cancelled"] += 1
            self._tell_positions()
            return True
        if job == self.running:
            self.painter.stop(job)
        return False

    def skip(self, job: str) -> None:
        """End the batch that a job draws."""
        if job == self.running:
            self.painter.stop(job, skip=True)

    def models_of(self, order: Order) -> dict[str, str]:
        """Return the folders that an order names, by name. Raises `SourceError` for one that is not served."""
        names = {cell.order.model for cell in cells(order)}
        return {name: str(self._catalogue.folder(name)) for name in names if name is not None}

    def _painting_settings(self) -> dict[str, Any]:
        import psutil

        settings = self._settings
        sessions = {
            name: getattr(settings, name)
            for name in ("providers", "provider_options", "device", "session_options", "threads")
        }
        return {
            "uploads": str(self._gallery.folder / UPLOADS),
            "loras": [str(folder.absolute()) for folder in settings.lora_dirs],
            "wildcards": [str(folder.absolute()) for folder in settings.wildcard_dirs],
            "allow_pickle": settings.allow_pickle,
            "metadata": settings.metadata,
            "memory_limit": settings.memory_limit or int(psutil.virtual_memory().available * 4 // 5),
            "sessions": sessions,
        }

    async def _draw_all(self) -> None:
        while True:
            while (job := self.waiting.pop()) is None:
                self._came.clear()
                await self._came.wait()
            self._tell_positions()
            await self._draw(job)
            if time.monotonic() - self._tidied > _TIDYING_SECONDS:
                self._tidied = time.monotonic()
                self._tidy()

    async def _draw(self, job: str) -> None:
        began = time.monotonic()
        limit = asyncio.get_running_loop().call_later(self._settings.time_limit, self._end_late, job)
        self.running, self._why = job, None
        error: dict[str, Any] | None = None
        try:
            await self._have_drawn(job)
        except ChildEnded as ended:
            error = self._why or {"code": "session", "message": f"the process that draws {ended}"}
        except OlivelikeError as refused:
            error = {"code": refused.word, "message": str(refused)}
        except (OSError, sqlite3.Error) as failed:
            error = {"code": "store", "message": f"the gallery can't be written: {failed}; free some space"}
            self.painter.stop(job)
        finally:
            limit.cancel()
            self.running = self.progress = None
        self.counts["seconds"] += time.monotonic() - began  # type: ignore[assignment]  # counters take any number
        with contextlib.suppress(sqlite3.Error):  # A full disk: the next start draws it again.
            if error is not None:
                self._journal.end(job, "failed", error)
        row = self._journal.find(job)
        assert row is not None
        self.counts[row.state] += 1
        self._feed.publish({"type": "ended", "job": job})

    async def _have_drawn(self, job: str) -> None:
        row = self._journal.find(job)
        assert row is not None
        order = Order.model_validate(row.asked)
        folder, first = row.folder, row.first
        if folder is None or first is None:
            folder, first = self._gallery.reserve(passing=not order.save)
        self._journal.update(job, state="drawing", started=row.started or time.time(), folder=folder, first=first)
        self._feed.publish(
            {"type": "started", "job": job, "batches": row.plan["batches"], "steps_total": row.plan["steps"]}
        )
        done = {one.number: one.path for one in self._gallery.of_job(job) if not one.sheet} if row.started else {}
        message = {
            "job": job, "order": row.asked, "models": self.models_of(order), "gallery": str(self._gallery.folder),
            "folder": folder, "first": first, "done": done, "safety": self._settings.safety,
        }  # fmt: skip
        async for answer in self.painter.draw(message):
            self._heard(job, answer)

    def _end_late(self, job: str) -> None:
        limit = self._settings.time_limit
        self._why = {"code": "session", "message": f"it took longer than the {limit:g} s that --time-limit allows"}
        self.painter.stop(job)

    def _heard(self, job: str, answer: Mapping[str, Any]) -> None:
        """Write down and tell what is said of the running job."""
        told: Event = {"type": answer["answer"], **{key: answer[key] for key in answer if key not in _INSIDE}}
        match answer["answer"]:
            case "step":
                self.progress = Progress(answer["done"], answer["steps_total"], answer["batch"], answer["eta"])
                self._feed.publish(told)
            case "picture" | "sheet" as kind:
                more = {key: answer[key] for key in _PICTURE}
                row = PictureRow(job=job, sheet=kind == "sheet", created=time.time(), **more)
                self._gallery.add(row)
                self.counts["pictures"] += kind == "picture"
                view = picture_view(row).model_dump(mode="json")
                self._feed.publish({"type": kind, "job": job, "number": row.number, "picture": view})
            case "done" | "failed" | "cancelled" as state:
                self.open_folders = answer["folders"]
                if state == "failed":
                    self._journal.end(job, state, {"code": answer["word"], "message": answer["message"]})
                elif state == "cancelled" and self._why is not None:
                    self._journal.end(job, "failed", self._why)
                else:
                    self._journal.end(job, state)
            case _:
                self._feed.publish(told)

    def _hear(self, answer: Mapping[str, Any]) -> None:
        self.open_folders = answer.get("folders", self.open_folders)
        self.counts["starts"] += answer["answer"] == "ready"

    def _tell_positions(self) -> None:
        for position, job in enumerate(self.waiting.order()):
            self._feed.publish({"type": "queue", "job": job, "position": position})

    def _tidy(self) -> None:
        """Drop what nobody needs any more."""
        orders = [row.asked for row in self._journal.unfinished() if row.kind == "pictures"]
        needed = {order[name] for order in orders for name in ("init_image", "mask") if order[name]}
        needed |= {control["image"] for order in orders for control in order.get("controls", ())}
        needed |= {name for order in orders for name in order.get("ip_adapter_images", ())}
        with contextlib.suppress(OSError, sqlite3.Error):
            self._gallery.drop_passing()
            prune_uploads(Path(self._gallery.folder, UPLOADS), needed)


_PICTURE: Final = (
    "id", "path", "number", "width", "height", "seed", "first_seed", "attempts", "prompt", "model", "flagged", "record",
    "parameters",
)  # fmt: skip
"""What is told of a picture, as its row has it."""
