"""What every API of the server calls: jobs, pictures, models; it knows no HTTP.

All of it runs in one event loop. Methods that are not `async` return at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from olivelike.errors import OlivelikeError, SourceError, StoreError, UsageError
from olivelike.runtime.pipeline.request import SEEDS
from olivelike.serve.catalogue import Catalogue
from olivelike.serve.feed import Feed
from olivelike.serve.gallery import PASSING, Gallery, PictureRow, read_record
from olivelike.serve.journal import JobRow
from olivelike.serve.orders import Axis, Order
from olivelike.serve.painter import ChildEnded, Painter
from olivelike.serve.plots import cells
from olivelike.serve.settings import ServeSettings
from olivelike.serve.views import ENDED, ErrorView, Event, JobView, ModelView, PictureView, iso
from olivelike.serve.waiting import FairQueue

_RANDOM = -1


class QueueFull(UsageError):  # noqa: N818  (named after the state)
    """No more jobs are taken until others are done."""

    def __init__(self, waiting: int, seconds: int) -> None:
        super().__init__(f"{waiting} jobs wait already, the most that are taken; try again in {seconds} s")
        self.seconds = seconds


class JobEnded(UsageError):  # noqa: N818
    """Nothing can be done to a job that has ended."""


class Service:
    """A server's state, between `start` and `close`."""

    def __init__(self, settings: ServeSettings) -> None:
        """Open the gallery. Raises `UsageError` and `StoreError` as that does, and `SourceError` without a folder."""
        self.settings = settings
        self.catalogue = Catalogue(settings)
        for folder in settings.folders:
            from olivelike.runtime.pipeline.pipeline_folder import open_folder

            open_folder(folder)
        self._current = next(iter(self.catalogue.folders()), None)
        self.gallery = Gallery(settings.gallery)
        self.journal = self.gallery.journal
        self.feed = Feed()
        self._waiting = FairQueue()
        self._came = asyncio.Event()
        self._loaded: list[str] = []
        self._running: str | None = None
        self._progress: dict[str, Any] = {}
        self._why: ErrorView | None = None
        """Why the running job was ended, if it was not its client."""
        self._tasks: list[asyncio.Task[None]] = []
        self.painter = Painter(
            {
                "uploads": str(self.gallery.folder / ".uploads"),
                "loras": [str(folder.absolute()) for folder in settings.lora_dirs],
                "wildcards": [str(folder.absolute()) for folder in settings.wildcard_dirs],
                "allow_pickle": settings.allow_pickle,
                "metadata": settings.metadata,
                "memory_limit": settings.memory_limit or _four_fifths_of_free_memory(),
                "sessions": {
                    "providers": settings.providers, "provider_options": settings.provider_options, "device": settings.device,
                    "session_options": settings.session_options, "threads": settings.threads,
                },
            },
            self.gallery.folder / ".index" / "painter.log",
            self._hear,
        )  # fmt: skip

    async def start(self) -> None:
        """Queue again what was left unfinished, and begin to draw."""
        for row in self.journal.unfinished():
            if row.kind == "pictures":
                if row.state == "drawing":
                    self._waiting.push_front(row.id)
                    self.journal.update(row.id, state="queued")
                else:
                    self._waiting.push(row.id, row.client)
        self.painter.start()
        if self.settings.warm and self._current:
            self.painter.warm(self.catalogue.folder(self._current), safety=self.settings.safety)
        self._tasks.append(asyncio.create_task(self._draw_all(), name="drawing"))
        self._came.set()

    async def close(self) -> None:
        """End all that listens and draws; what is not finished is, at the next start."""
        self.feed.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await asyncio.to_thread(self.painter.close)
        self.gallery.close()

    # Jobs

    async def submit(self, order: Order, client: str) -> JobView:
        """Queue an order.

        Raises:
            UsageError: for a value that can't be had.
            SourceError: for a model, LoRA or upload that is not there.
            QueueFull: if too many jobs wait.
        """
        if len(self._waiting) >= self.settings.max_queue:
            raise QueueFull(len(self._waiting), 10)
        order = self._completed(order)
        self._check_limits(order)
        job = secrets.token_hex(8)
        plan = await self.painter.ask(
            "plan", job=job, order=order.model_dump(mode="json"), models=self._models_of(order)
        )
        if len(self._waiting) >= self.settings.max_queue:  # Others came meanwhile.
            raise QueueFull(len(self._waiting), 10)
        plan["files"] = plan["pictures"] + 1
        self.journal.add(
            JobRow(job, "pictures", client, "queued", time.time(), order.model_dump(mode="json"), plan)
        )
        self._waiting.push(job, client)
        self._came.set()
        view = self.job(job)
        assert view is not None
        self.feed.publish({"type": "queued", "job": job, "position": view.position})
        return view

    def job(self, job: str) -> JobView | None:
        """Return a job as it is now; `None` if there is none of that id."""
        row = self.journal.find(job)
        return self._view(row, self._waiting.order()) if row is not None else None

    def jobs(self, state: str | None = None, limit: int = 50) -> list[JobView]:
        """Return the newest jobs, newest first."""
        order = self._waiting.order()
        return [self._view(row, order) for row in self.journal.jobs(state, limit)]

    def cancel(self, job: str) -> JobView:
        """End a job. Raises `SourceError` if there is none of that id, and `JobEnded` if it has ended."""
        row = self._unended(job)
        if self._waiting.remove(job):
            self.journal.end(job, "cancelled")
            self._tell_end(job)
            self._tell_positions()
        elif job == self._running:
            self.painter.stop(job)
        return self._view(row, self._waiting.order())

    def skip(self, job: str) -> JobView:
        """End the batch that a job draws. Raises as `cancel`."""
        row = self._unended(job)
        if job == self._running:
            self.painter.stop(job, skip=True)
        return self._view(row, self._waiting.order())

    async def events(self, job: str | None = None, *, previews: bool = False) -> AsyncIterator[Event]:
        """Return what happens from now on; of one job, its present state first, until it has ended.

        Raises `SourceError` if there is none of that id.
        """
        with self.feed.listening(job, previews=previews) as listener:
            self.painter.show_previews(wanted=self.feed.shows_previews)
            try:
                if job is not None:
                    view = self.job(job)
                    if view is None:
                        raise SourceError(f"there is no job {job!r}")
                    yield {"type": "state", "job": job, "view": _json(view)}
                    if view.state in ENDED:
                        yield {"type": view.state, "job": job, "view": _json(view)}
                        return
                async for event in listener.events():
                    yield event
                    if job is not None and event["type"] in ENDED:
                        return
            finally:
                listener.previews = False
                self.painter.show_previews(wanted=self.feed.shows_previews)

    async def finished(self, job: str) -> JobView:
        """Wait until a job has ended. Raises `SourceError` if there is none of that id."""
        async for event in self.events(job):
            if event["type"] in ENDED:
                break
        view = self.job(job)
        assert view is not None
        return view

    # Pictures

    def picture(self, picture: str) -> PictureView | None:
        """Return a picture; `None` if there is none of that id."""
        row = self.gallery.find(picture)
        return _picture(row) if row is not None else None

    # Models

    @property
    def current_model(self) -> str | None:
        """The name of the folder that orders without a model get."""
        return self._current

    def set_model(self, name: str) -> None:
        """Make a folder the current one. Raises `SourceError` if none of that name is served."""
        self.catalogue.folder(name)
        self._current = name

    def models(self) -> list[ModelView]:
        """Return the folders that are served."""
        return self.catalogue.models(self._loaded)

    # What happens

    def _completed(self, order: Order) -> Order:
        """Fix what an order leaves open, so that it makes the same pictures whenever it is drawn."""

        def drawn(axis: Axis | None) -> Axis | None:
            if axis is None or axis.field != "seed":
                return axis
            values = (secrets.randbelow(SEEDS) if str(value) == str(_RANDOM) else value for value in axis.values)
            return axis.model_copy(update={"values": tuple(values)})

        seed = secrets.randbelow(SEEDS) if order.seed in (None, _RANDOM) else order.seed
        model = order.model or self._current
        if model is None:
            raise SourceError("no model is served yet; convert a checkpoint first, or start the server with a folder")
        self.catalogue.folder(model)
        return order.model_copy(update={"seed": seed, "model": model, "x": drawn(order.x), "y": drawn(order.y)})

    def _check_limits(self, order: Order) -> None:
        settings = self.settings
        if (order.width is None) != (order.height is None):
            raise UsageError("one side alone is given; give width and height, or neither")
        across, down = (len(axis.values) if axis else 1 for axis in (order.x, order.y))
        if across * down * order.num_images > settings.max_images:
            raise UsageError(f"{across * down * order.num_images} pictures are more than {settings.max_images} of a job")
        for cell in cells(order):
            if max(cell.order.width or 0, cell.order.height or 0) > settings.max_side:
                raise UsageError(f"a side of more than {settings.max_side} pixels; --max-size of the server allows no more")
            if cell.order.steps > settings.max_steps:
                raise UsageError(f"{cell.order.steps} steps are more than {settings.max_steps}, the most here")

    def _models_of(self, order: Order) -> dict[str, str]:
        names = {cell.order.model for cell in cells(order)}
        return {name: str(self.catalogue.folder(name)) for name in names if name is not None}

    async def _draw_all(self) -> None:
        while True:
            while (job := self._waiting.pop()) is None:
                self._came.clear()
                await self._came.wait()
            self._tell_positions()
            await self._draw(job)

    async def _draw(self, job: str) -> None:
        row = self.journal.find(job)
        assert row is not None
        self._running, self._why = job, None
        self._progress = {"batches": row.plan["batches"], "steps_total": row.plan["steps"]}
        limit = asyncio.get_running_loop().call_later(self.settings.time_limit, self._end_late, job)
        try:
            order = Order.model_validate(row.asked)
            folder, first = row.folder, row.first
            if folder is None or first is None:
                folder, first = self.gallery.reserve(passing=not order.save)
            self.journal.update(job, state="drawing", started=row.started or time.time(), folder=folder, first=first)
            done = {picture.number: picture.path for picture in self.gallery.of_job(job) if not picture.sheet}
            self.feed.publish(
                {"type": "started", "job": job, "batches": row.plan["batches"], "steps_total": row.plan["steps"]}
            )
            message = {
                "job": job, "order": row.asked, "models": self._models_of(order),
                "gallery": str(self.gallery.folder), "folder": folder, "first": first, "done": done,
                "safety": self.settings.safety,
            }  # fmt: skip
            self._current = order.model
            async for answer in self.painter.draw(message):
                self._heard(job, answer)
        except ChildEnded as error:
            why = self._why or ErrorView(code="painter", message=f"the process that draws {error}")
            self.journal.end(job, "failed", why.model_dump())
        except OlivelikeError as error:
            self.journal.end(job, "failed", {"code": error.word, "message": str(error)})
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(sqlite3.Error):
                self.journal.end(job, "failed", {"code": "store", "message": f"the gallery can't be written: {error}"})
        finally:
            limit.cancel()
            self._running = None
        self._tell_end(job)

    def _end_late(self, job: str) -> None:
        self._why = ErrorView(
            code="time_limit", message=f"it took longer than {self.settings.time_limit:g} s, which --time-limit allows"
        )
        self.painter.stop(job)

    def _heard(self, job: str, answer: Mapping[str, Any]) -> None:
        """Write down and tell what the child says of the running job."""
        match answer["answer"]:
            case "step":
                self._progress = {
                    "step": answer["done"], "steps_total": answer["steps_total"], "batch": answer["batch"],
                    "batches": answer["batches"], "eta": answer["eta"],
                }  # fmt: skip
                shown = {key: value for key, value in answer.items() if key != "answer"}
                self.feed.publish({"type": "step", **shown})
            case "picture" | "sheet" as kind:
                row = PictureRow(
                    answer["id"], answer["path"], job, answer["number"], kind == "sheet", time.time(),
                    answer["width"], answer["height"], answer["seed"], answer["prompt"], answer["model"],
                    answer["flagged"], answer["record"], answer["parameters"],
                )  # fmt: skip
                self.gallery.add(row)
                self.feed.publish({"type": kind, "job": job, "picture": _json(_picture(row))})
            case "opening":
                self.feed.publish({"type": "opening", "job": job, "loras": answer["loras"]})
            case "failed":
                self._loaded = answer["folders"]
                self.journal.end(job, "failed", {"code": answer["word"], "message": answer["message"]})
            case "cancelled" if self._why is not None:
                self.journal.end(job, "failed", self._why.model_dump())
            case state:
                self._loaded = answer["folders"]
                self.journal.end(job, state)

    def _hear(self, answer: Mapping[str, Any]) -> None:
        self._loaded = answer.get("folders", self._loaded)

    def _tell_end(self, job: str) -> None:
        view = self.job(job)
        assert view is not None
        self.feed.publish({"type": view.state, "job": job, "view": _json(view)})

    def _tell_positions(self) -> None:
        for position, job in enumerate(self._waiting.order()):
            self.feed.publish({"type": "queue", "job": job, "position": position})

    def _unended(self, job: str) -> JobRow:
        row = self.journal.find(job)
        if row is None:
            raise SourceError(f"there is no job {job!r}")
        if row.state in ENDED:
            raise JobEnded(f"job {job} has ended already: {row.state}")
        return row

    def _view(self, row: JobRow, waiting: list[str]) -> JobView:
        pictures = self.gallery.of_job(row.id)
        progress = self._progress if row.id == self._running else {}
        steps, done = row.plan.get("steps", 0), row.state == "done"
        sheet = next((one for one in pictures if one.sheet), None)
        return JobView(
            id=row.id,
            kind=row.kind,
            state=row.state,
            position=waiting.index(row.id) if row.id in waiting else None,
            client=row.client,
            created=iso(row.created) or "",
            started=iso(row.started),
            finished=iso(row.finished),
            order=Order.model_validate(row.asked) if row.kind == "pictures" else None,
            run={**row.asked, **(row.found or {})} if row.kind == "run" else None,
            step=progress.get("step", steps if done else 0),
            steps_total=progress.get("steps_total", steps),
            batch=progress.get("batch", row.plan.get("batches", 0) if done else 0),
            batches=row.plan.get("batches", 0),
            eta_seconds=progress.get("eta"),
            pictures=[_picture(one) for one in pictures if not one.sheet],
            sheet=_picture(sheet) if sheet else None,
            notes=row.plan.get("notes", []),
            error=ErrorView(**row.error) if row.error else None,
        )


def _picture(row: PictureRow) -> PictureView:
    return PictureView(
        id=row.id, job=row.job, url=f"/files/{row.id}.png", thumb=f"/thumbs/{row.id}.webp", width=row.width,
        height=row.height, seed=row.seed, prompt=row.prompt, flagged=row.flagged, created=iso(row.created) or "",
        record=read_record(row), parameters=row.parameters,
    )  # fmt: skip


def _json(view: JobView | PictureView) -> dict[str, Any]:
    return view.model_dump(mode="json")


def _four_fifths_of_free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available * 4 // 5)


