"""One job after another: from the queue to the process that draws, and what it tells into journal, gallery and feed."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from olivelike._extras import needed
from olivelike._untrusted import Json, JsonView
from olivelike.errors import OlivelikeError
from olivelike.serve.catalogue import Catalogue
from olivelike.serve.drawing.painter import ChildEnded, ChildLost, Painter, Workers
from olivelike.serve.drawing.plots import cells, count_cells
from olivelike.serve.drawing.waiting import FairQueue
from olivelike.serve.feed import Feed
from olivelike.serve.gallery.gallery import INDEX, UPLOADS, Gallery, PictureRow
from olivelike.serve.gallery.journal import JobRow
from olivelike.serve.gallery.library import picture_view
from olivelike.serve.gallery.uploads import prune_uploads
from olivelike.serve.orders import Order, uploads_of
from olivelike.serve.settings import ServeSettings
from olivelike.serve.upscales import Upscales
from olivelike.serve.views import Event

_INSIDE: Final = frozenset({"answer", "folder", "folders", "grown"})
"""Keys of answers that the process that draws means for the server alone."""
_TIDYING_SECONDS: Final = 600.0
_FOLLOWING_SECONDS: Final = 5.0
"""Seconds between two looks for workers that have come are looked for."""


@dataclass(frozen=True)
class Progress:
    """How far a running job is."""

    step: int
    steps_total: int
    batch: int
    eta: float | None


@dataclass
class Running:
    """A job that is drawn."""

    painter: Painter
    opening: str | None = None
    """Folder that is opened for it now, by its name."""
    progress: Progress | None = None
    why: Json | None = None
    """Why it was ended, if it was not its client who did."""


@dataclass
class Ahead:
    """A job that is drawn while it is still planned and written down: nothing else was to be drawn."""

    job: str
    folder: str = ""
    first: int = 0
    row: JobRow | None = None
    """As it is in the journal; `None` as long as it may still be refused."""
    is_queued: bool = False


class Dispatcher:
    """The queue, and the jobs that are drawn: one at a time here, or one by each worker of a cluster.

    Raises what `Workers` do as they are made.
    """

    def __init__(
        self, settings: ServeSettings, catalogue: Catalogue, gallery: Gallery, feed: Feed, upscales: Upscales
    ) -> None:
        self._settings, self._catalogue, self._gallery, self._feed = settings, catalogue, gallery, feed
        self._upscales = upscales
        self._journal = gallery.journal
        self._came = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._tidied = 0.0
        self.waiting = FairQueue()
        self.running: dict[str, Running] = {}
        """By job, in the order in which they were begun."""
        self._ahead: Ahead | None = None
        self._open: dict[Painter, list[str]] = {}
        """Paths of folders that are kept open, by the process that does."""
        self.counts: Counter[str] = Counter()
        """Jobs by how they ended, `pictures`, `seconds` of drawing, and `starts` of the process that draws."""
        self._cluster = None if settings.cluster is None else _cluster(settings.cluster, gallery.folder / INDEX)
        self.painters: list[Painter] = []
        """Processes that draw."""
        self.planner = self._new_painter(None)
        """Plans orders, and draws where there is no cluster."""
        if self._cluster is None:
            self.painters.append(self.planner)

    def start(self) -> None:
        """Queue again what was left unfinished, and begin to draw."""
        rows = [row for row in self._journal.unfinished() if row.kind == "pictures"]
        self.waiting = FairQueue((row.id, None if row.started else row.client) for row in rows)
        for row in rows:
            if row.state == "drawing":
                self._journal.update(row.id, state="queued")
        self.planner.start()
        if self._cluster is None:
            self._tasks = [asyncio.create_task(self._draw_all(self.planner), name="drawing")]
        else:
            self._tasks = [asyncio.create_task(self._follow(self._cluster), name="workers")]

    async def close(self) -> None:
        """Stop drawing; the running job goes on at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for painter in {self.planner, *self.painters}:
            await asyncio.to_thread(painter.close)
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.close)

    async def plan(self, job: str, order: Order, asked: Json) -> Json:
        """Return what the process that draws finds out of an order; if nothing waits, it draws it at once.

        Raises as `Painter.plan`. What comes next is `write` and `push`, or `let_go`.
        """
        models = self.models_of(order)
        question = {"job": job, "order": asked, "models": models}
        if self.waiting or self.running or self._ahead is not None or self._cluster is not None:
            return await self.planner.plan(**question)
        files = count_cells(order) * order.num_images + 1
        ahead = self._ahead = Ahead(job)
        message = self._message(job, asked, models, ahead.folder, ahead.first)
        planned = asyncio.ensure_future(self.planner.plan_and_draw(message, **question))
        try:
            await asyncio.sleep(0)  # It has the question, and draws while thousands of files are looked through.
            ahead.folder, ahead.first = self._gallery.reserve(passing=not order.save, held=files)
            return await planned
        except BaseException:
            planned.cancel()
            await asyncio.gather(planned, return_exceptions=True)
            self._ahead = None
            self._gallery.release()
            self._came.set()
            raise

    def write(self, row: JobRow) -> None:
        """Write a job down that was planned. Raises what the disk refuses; the job is none then."""
        ahead = self._ahead
        if ahead is None or ahead.job != row.id:
            self._journal.add(row)
            return
        ahead.row = replace(row, state="drawing", started=row.created, folder=ahead.folder, first=ahead.first)
        try:
            self._journal.add(ahead.row)
        except BaseException:
            self.let_go(row.id)
            raise
        finally:
            self._gallery.release()
        self.planner.keep(row.id, ahead.folder, ahead.first)

    def push(self, job: str, client: str) -> None:
        """Queue a job that is in the journal."""
        if self._ahead is not None and self._ahead.job == job:
            self._ahead.is_queued = True
            self.waiting.push_front(job)
        else:
            self.waiting.push(job, client)
        self._came.set()

    def is_ahead(self, job: str) -> bool:
        """Tell whether a job is drawn already, and needs no place in the queue."""
        return self._ahead is not None and self._ahead.job == job

    def let_go(self, job: str) -> None:
        """End what is drawn already, if that is this job: it comes to no place in the queue."""
        if self.is_ahead(job):
            self._ahead = None
            self.planner.let_go(job)
            self._came.set()

    def cancel(self, job: str) -> bool:
        """Take a job out of the queue, or end it; say whether that is done already."""
        if self.waiting.remove(job):
            self.let_go(job)
            self._journal.end(job, "cancelled")
            self.counts["cancelled"] += 1
            self._keep_order()
            self._tell_positions()
            return True
        if (running := self.running.get(job)) is not None:
            running.painter.stop(job)
        return False

    def move(self, job: str, places: int) -> bool:
        """Move a job among those of its client that wait; say whether it waits."""
        if moved := self.waiting.move(job, places):
            self._keep_order()
            self._tell_positions()
        return moved

    def skip(self, job: str) -> None:
        """End the batch that a job draws."""
        if (running := self.running.get(job)) is not None:
            running.painter.stop(job, skip=True)

    @property
    def open_folders(self) -> list[str]:
        """Paths of the folders that are kept open."""
        return list(dict.fromkeys(folder for folders in self._open.values() for folder in folders))

    def show_previews(self, *, wanted: bool) -> None:
        """Say whether anybody looks at previews."""
        for painter in self.painters:
            painter.show_previews(wanted=wanted)

    def unload(self) -> None:
        """Close all folders, once what is drawn is done."""
        for painter in self.painters:
            painter.unload()

    def warm(self, folder: Path) -> None:
        """Open a folder."""
        for painter in self.painters:
            painter.warm(folder, safety=self._settings.safety)

    def models_of(self, order: Order) -> dict[str, str]:
        """Return the folders that an order names, by name. Raises `SourceError` for one that is not served."""
        names = {cell.order.model for cell in cells(order)}
        return {name: str(self._catalogue.folder(name)) for name in names if name is not None}

    def _painting_settings(self, cluster: Workers | None) -> Json:
        import psutil

        settings = self._settings
        loras = [*settings.lora_dirs]
        limit = {"memory_limit": settings.memory_limit or int(psutil.virtual_memory().available * 4 // 5)}
        if cluster is not None:
            # Without a limit, that of its machine.
            limit = {"memory_limit": settings.memory_limit} if settings.memory_limit else {}
            loras += [folder for folder in (Path("loras"),) if folder.is_dir()]
        sessions = {
            name: getattr(settings, name)
            for name in ("providers", "provider_options", "device", "session_options", "threads", "keep_compiled")
        }
        return {
            "uploads": str(self._gallery.folder / UPLOADS),
            "loras": [str(folder.absolute()) for folder in loras],
            "wildcards": [str(folder.absolute()) for folder in settings.wildcard_dirs],
            "upscalers": [str(folder.absolute()) for folder in settings.upscaler_dirs],
            "allow_pickle": settings.allow_pickle,
            "metadata": settings.metadata,
            "signing": [str(one.absolute()) for one in (settings.sign_pictures, settings.sign_key) if one is not None],
            **limit,
            "sessions": sessions,
        }

    def _new_painter(self, cluster: Workers | None) -> Painter:
        number = len(self.painters) + (cluster is not None)
        log = self._gallery.folder / INDEX / (f"painter-{number}.log" if number else "painter.log")

        def hear(answer: JsonView) -> None:
            self._open[painter] = answer.get("folders", self._open.get(painter, []))
            self.counts["starts"] += answer["answer"] == "ready"

        painter = Painter(self._painting_settings(cluster), log, hear, cluster)
        return painter

    async def _follow(self, cluster: Workers) -> None:
        """Have a painter for each worker that there has been at once."""
        while True:
            for _ in range(await asyncio.to_thread(lambda: cluster.size) - len(self.painters)):
                painter = self._new_painter(cluster)
                painter.previews = self._feed.shows_previews
                self.painters.append(painter)
                painter.start()
                if self._settings.warm and (folder := next(iter(self._catalogue.folders().values()), None)):
                    painter.warm(folder, safety=self._settings.safety)
                self._tasks.append(asyncio.create_task(self._draw_all(painter), name="drawing"))
            await asyncio.sleep(_FOLLOWING_SECONDS)

    async def _draw_all(self, painter: Painter) -> None:
        while True:
            await painter.may_draw()
            # What is drawn already goes first.
            is_decided = self._ahead is None or self._ahead.is_queued
            if (job := self.waiting.pop() if is_decided else None) is None:
                self._came.clear()
                await self._came.wait()
                continue
            self._tell_positions()
            await self._draw(job, painter)
            if time.monotonic() - self._tidied > _TIDYING_SECONDS:
                self._tidied = time.monotonic()
                self._tidy()

    async def _draw(self, job: str, painter: Painter) -> None:
        began = time.monotonic()
        limit = asyncio.get_running_loop().call_later(self._settings.time_limit, self._end_late, job)
        running = self.running[job] = Running(painter)
        error: Json | None = None
        try:
            await self._have_drawn(job, painter)
        except ChildLost as lost:
            if running.why is None:
                self._draw_again(job)
                return
            error = running.why or {"code": "session", "message": f"the process that draws {lost}"}
        except ChildEnded as ended:
            error = running.why or {"code": "session", "message": f"the process that draws {ended}"}
        except OlivelikeError as refused:
            error = {"code": refused.word, "message": str(refused)}
        except (OSError, sqlite3.Error) as failed:
            error = {"code": "store", "message": f"the gallery can't be written: {failed}; free some space"}
            painter.let_go(job)
        finally:
            limit.cancel()
            del self.running[job]
        self.counts["seconds"] += time.monotonic() - began  # type: ignore[assignment]  # counters take any number
        with contextlib.suppress(sqlite3.Error):  # A full disk: the next start draws it again.
            if error is not None:
                self._journal.end(job, "failed", error)
        self.counts[self._journal.job(job).state] += 1
        self._feed.publish({"type": "ended", "job": job})

    def _draw_again(self, job: str) -> None:
        """Queue a job whose worker is lost; what of it is there is not drawn again."""
        self.waiting.push_front(job)
        self._journal.update(job, state="queued")
        self._came.set()

    async def _have_drawn(self, job: str, painter: Painter) -> None:
        ahead = self._ahead
        if ahead is not None and ahead.job == job:
            self._ahead, row = None, ahead.row
            assert row is not None
        else:
            row = self._journal.job(job)
            self._begin(row, painter)
        opening = self.running[job].opening = self._not_open(row, painter)
        planned = {"batches": row.plan["batches"], "steps_total": row.plan["steps"]}
        self._feed.publish({"type": "started", "job": job, **planned, "opening": opening})
        # Closed here, if what was drawn can't be kept: by then the next job may be drawn.
        async with aclosing(painter.draw()) as answers:
            async for answer in answers:
                self._heard(job, row.client, answer)
                await asyncio.sleep(0)  # Who waits for the picture is told before the index.
                self._gallery.settle(job)

    def _not_open(self, row: JobRow, painter: Painter) -> str | None:
        """Return a job's first folder by its name, if it is not open; what draws may have to start to say so."""
        name = cells(Order.model_validate(row.asked))[0].order.model
        is_open = name is None or str(self._catalogue.folder(name)) in self._open.get(painter, ())
        return None if is_open else name

    def _begin(self, row: JobRow, painter: Painter) -> None:
        """Let a process draw a job, and write down that it is begun, or is again."""
        order = Order.model_validate(row.asked)
        folder, first = row.folder, row.first
        is_new = (folder is None or first is None) and self._cluster is None
        if is_new:  # It draws while thousands of files are looked through.
            painter.begin(self._message(row.id, row.asked, self.models_of(order), "", 0))
        if folder is None or first is None:
            folder, first = self._gallery.reserve(passing=not order.save)
        self._journal.update(row.id, state="drawing", started=row.started or time.time(), folder=folder, first=first)
        if is_new:
            painter.keep(row.id, folder, first)
        else:
            painter.begin(self._again(row, order, folder, first))
        self._keep_order()

    def _again(self, row: JobRow, order: Order, folder: str, first: int) -> Json:
        """Return what a process is told of a job whose pictures have numbers: some may be there."""
        there = [one for one in self._gallery.of_job(row.id) if not one.sheet] if row.started else []
        reads = [*row.plan.get("reads", ()), *self._also_read(order)] if self._cluster is not None else []
        return {
            **self._message(row.id, row.asked, self.models_of(order), folder, first),
            "done": {one.number: one.path for one in there}, "flagged": [one.number for one in there if one.flagged],
            "reads": reads,
        }  # fmt: skip

    def _message(self, job: str, asked: JsonView, models: JsonView, folder: str, first: int) -> Json:
        """Return what the process that draws is told of a job that has no pictures yet."""
        return {
            "job": job, "order": asked, "models": models, "gallery": str(self._gallery.folder), "folder": folder,
            "first": first, "done": {}, "flagged": [], "safety": self._settings.safety,
        }  # fmt: skip

    def _also_read(self, order: Order) -> list[str]:
        """Return the uploads that an order names, and all wildcards: which of them it takes is known as it is drawn."""
        uploads = [str(Path(self._gallery.folder, UPLOADS, f"{name}.png")) for name in order.uploads]
        return uploads + [str(folder.absolute()) for folder in self._settings.wildcard_dirs]

    def _end_late(self, job: str) -> None:
        limit = self._settings.time_limit
        if (running := self.running.get(job)) is not None:
            message = f"it took longer than the {limit:g} s that --time-limit allows"
            running.why = {"code": "session", "message": message}
            running.painter.stop(job)

    def _heard(self, job: str, client: str, answer: JsonView) -> None:
        """Write down and tell what is said of a client's running job."""
        told: Event = {"type": answer["answer"], **{key: answer[key] for key in answer if key not in _INSIDE}}
        running = self.running[job]
        running.opening = answer["model"] if answer["answer"] == "opening" else None
        if "folders" in answer:
            self._open[running.painter] = answer["folders"]
        match answer["answer"]:
            case "step":
                running.progress = Progress(answer["done"], answer["steps_total"], answer["batch"], answer["eta"])
                self._feed.publish(told)
            case "picture" | "sheet" as kind:
                more = {key: answer[key] for key in _PICTURE}
                row = PictureRow(job=job, sheet=kind == "sheet", created=time.time(), **more)
                self._gallery.add_soon(row, client)
                self.counts["pictures"] += kind == "picture"
                view = picture_view(row).model_dump(mode="json")
                self._feed.publish({"type": kind, "job": job, "number": row.number, "picture": view})
            case "done" | "failed" | "cancelled" as state:
                if state == "failed":
                    self._journal.end(job, state, {"code": answer["word"], "message": answer["message"]})
                elif state == "cancelled" and running.why is not None:
                    self._journal.end(job, "failed", running.why)
                else:
                    self._journal.end(job, state)
            case _:
                self._feed.publish(told)

    def _keep_order(self) -> None:
        self._journal.keep_order(self.waiting.order())

    def _tell_positions(self) -> None:
        for position, job in enumerate(self.waiting.order()):
            self._feed.publish({"type": "queue", "job": job, "position": position})

    def needed_uploads(self) -> set[str]:
        """Return the uploads that unfinished jobs and enlargements name."""
        orders = [row.asked for row in self._journal.unfinished() if row.kind == "pictures"]
        named = {name for order in orders for name in uploads_of(order)}
        return named.union(*(one.uploads for one in self._upscales.running()))

    def _tidy(self) -> None:
        """Drop what nobody needs any more."""
        with contextlib.suppress(OSError, sqlite3.Error):
            self._gallery.drop_passing()
            folder, senders = Path(self._gallery.folder, UPLOADS), self._gallery.senders()
            self._gallery.forget_senders(prune_uploads(folder, self.needed_uploads(), senders))


def _cluster(address: str, folder: Path) -> Workers:
    workers: Workers = needed("EXECUTORS", "pictures", "--cluster")(address, folder)
    return workers


_PICTURE: Final = (
    "id", "path", "number", "width", "height", "seed", "first_seed", "attempts", "prompt", "model", "flagged", "record",
    "parameters",
)  # fmt: skip
"""Columns of a picture's row that clients are told."""
