"""Service that every API of the server calls: jobs, pictures, models; it knows no HTTP.

All of it runs in one event loop. Methods that are not `async` return at once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pictures.picture_signature import open_picture_signer
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.request import CHOICES, RANDOM, seed_or_drawn
from olivelike.serve.catalogue import Catalogue, Embedding
from olivelike.serve.drawing.dispatch import Dispatcher
from olivelike.serve.drawing.plots import cells, count_cells
from olivelike.serve.feed import Feed
from olivelike.serve.gallery.gallery import Gallery
from olivelike.serve.gallery.journal import JobRow
from olivelike.serve.gallery.library import Library
from olivelike.serve.gallery.notebook import Notebook
from olivelike.serve.highlighting import read_tokens
from olivelike.serve.orders import Axis, Order
from olivelike.serve.settings import ServeSettings
from olivelike.serve.upscalers import find_upscaler
from olivelike.serve.upscales import Upscales
from olivelike.serve.views import (
    ENDED,
    ErrorView,
    Event,
    JobEnded,
    JobView,
    LoraView,
    ModelView,
    PictureView,
    QueueFull,
    UploadView,
    iso,
)

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.serve.runs.workflow_jobs import Runs


class Service:
    """A server's state, between `start` and `close`."""

    def __init__(self, settings: ServeSettings) -> None:
        """Open the gallery.

        Raises `UsageError` if another server has it, or nothing is to be served, `StoreError` if nothing can be written
        there, and `SourceError` if a folder is no pipeline's.
        """
        self.settings = settings
        self.catalogue = Catalogue(settings)
        for folder in settings.folders:
            open_folder(folder)
        if not settings.folders and not settings.models_dirs:
            raise UsageError("nothing is served; name folders that `olivelike run` wrote, or --models DIR")
        settings.check()
        signer = open_picture_signer(settings.sign_pictures, settings.sign_key)
        self._current = next(iter(self.catalogue.folders()), None)
        self.gallery = Gallery(settings.gallery)
        self.library = Library(self.gallery, metadata=settings.metadata, signer=signer)
        kept = self.gallery.folder
        self.notebook = Notebook(settings.styles_file, kept / "presets.json")
        self.journal = self.gallery.journal
        self.feed = Feed()
        self.upscales = Upscales()
        self.dispatcher = Dispatcher(settings, self.catalogue, self.gallery, self.feed, self.upscales)
        self.painter = self.dispatcher.planner
        self._listing = asyncio.Lock()
        self.runs: Runs | None = None
        """Workflows and conversions, where the operator allows them."""

    async def start(self) -> None:
        """Queue again what was left unfinished, and begin to draw."""
        self.dispatcher.start()
        if self.settings.warm and self._current:
            self.dispatcher.warm(self.catalogue.folder(self._current))

    async def close(self) -> None:
        """End all that listens and draws; what is not finished is, at the next start."""
        self.feed.close()
        self.upscales.close()
        await self.dispatcher.close()
        await asyncio.to_thread(self.library.close)
        self.gallery.close()

    async def submit(self, order: Order, client: str) -> JobView:
        """Queue an order.

        Raises `UsageError` for a value that can't be had, `SourceError` for a model, LoRA or upload that is not there,
        and `QueueFull` if too many jobs wait.
        """
        view = self._push(*await self._planned(order, client))
        await asyncio.sleep(0)  # If nothing is drawn, this is now, while the answer is written.
        return view

    async def draw(self, order: Order, client: str, *, previews: bool = False) -> AsyncGenerator[Event, None]:
        """Queue an order and return what `events` does of its job, from before it is drawn. Raises as `submit`."""
        row, order = await self._planned(order, client)
        async with aclosing(self.events(row.id, previews=previews)) as events:
            try:
                state = await anext(events)
            except BaseException:
                self.dispatcher.let_go(row.id)
                raise
            view = self._push(row, order)
            yield {**state, "view": view.model_dump(mode="json")}
            async for event in events:
                yield event

    async def _planned(self, order: Order, client: str) -> tuple[JobRow, Order]:
        """Return a new job, written down and not queued, and its order with all that it left open."""
        self._require_room()
        order = self._completed(order)
        self.check_limits(order)
        # A choice that is left open is that of the folder's family.
        job, asked = secrets.token_hex(8), order.model_dump(mode="json", exclude=set(CHOICES - order.model_fields_set))
        plan = await self.dispatcher.plan(job, order, asked)
        if not self.dispatcher.is_ahead(job):
            self._require_room()  # Others came meanwhile.
        plan["files"] = plan["pictures"] + 1
        row = JobRow(job, "pictures", client, "queued", time.time(), asked, plan)
        self.dispatcher.write(row)
        return row, order

    def _push(self, row: JobRow, order: Order) -> JobView:
        """Queue a job that is written down; nothing may come between the two."""
        self.dispatcher.push(row.id, row.client)
        view = self._view(row, order)
        self.feed.publish({"type": "queued", "job": row.id, "position": view.position})
        return view

    def job(self, job: str) -> JobView:
        """Return a job as it is now. Raises `SourceError` if there is none of that id."""
        return self._view(self.journal.job(job))

    def jobs(self, state: str | None = None, limit: int = 50, *, client: str | None = None) -> list[JobView]:
        """Return the newest jobs, newest first; of one client, or all."""
        places = self.dispatcher.waiting.places()
        return [self._view(row, places=places) for row in self.journal.jobs(state, limit, client=client)]

    def cancel(self, job: str) -> JobView:
        """End a job. Raises `SourceError` if there is none of that id, and `JobEnded` if it has ended."""
        row = self._unended(job)
        if row.kind == "run" and self.runs is not None:
            self.runs.cancel(job)
        elif row.kind == "pictures" and self.dispatcher.cancel(job):
            self.feed.publish({"type": "ended", "job": job})
        return self._view(self.journal.find(job) or row)

    def skip(self, job: str) -> JobView:
        """End the batch that a job draws. Raises as `cancel`."""
        row = self._unended(job)
        self.dispatcher.skip(job)
        return self._view(row)

    def move(self, job: str, places: int) -> JobView:
        """Move a job among those of its client that wait; later where `places` is above 0.

        Raises `SourceError` if there is none of that id, and `JobEnded` if it waits no more.
        """
        row = self._unended(job)
        if not self.dispatcher.move(job, places):
            raise JobEnded(f"job {job} does not wait any more")
        return self._view(row)

    def running(self) -> JobView | None:
        """Return the job that is drawn now; of several, the one that was begun first."""
        first = next(iter(self.dispatcher.running), None)
        return self.job(first) if first is not None else None

    def job_of(self, client: str) -> JobView | None:
        """Return a client's job that is drawn, else the first of its that waits; it may ask many times a second."""
        waiting = self.dispatcher.waiting
        begun = map(self.journal.job, (*self.dispatcher.running, *waiting.begun))
        if (row := next((row for row in begun if row.client == client), None)) is not None:
            return self._view(row)
        first = waiting.first_of(client)
        return None if first is None else self.job(first)

    async def events(
        self, job: str | None = None, *, previews: bool = False, client: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Return what happens from now on, to one client's jobs or all; of one job, its state first, until its end.

        Raises `SourceError` if there is none of that id.
        """
        with self.feed.listening(job, previews=previews) as listener:
            self.dispatcher.show_previews(wanted=self.feed.shows_previews)
            try:
                if job is not None:
                    view = self.job(job)
                    yield {"type": "state", "job": job, "view": view.model_dump(mode="json")}
                    if view.state in ENDED:
                        yield {"type": view.state, "job": job, "view": view.model_dump(mode="json")}
                        return
                async for event in listener.events():
                    if client is not None and self._client_of(event) not in (None, client):
                        continue
                    told = self._with_view(event) if event["type"] == "ended" else event
                    yield told
                    if job is not None and told["type"] in ENDED:
                        return
            finally:
                listener.previews = False
                self.dispatcher.show_previews(wanted=self.feed.shows_previews)

    async def drawn(self, job: str) -> JobView:
        """Wait until all that a job draws is in its files, or it has ended, and return it as it is then.

        A job whose last picture has come counts as done, which index and journal have behind that. Raises `SourceError`
        if there is none of that id.
        """
        with self.feed.listening(job) as listener:
            row = self.journal.job(job)
            view = self._view(row)
            if view.state in ENDED:
                return view
            pictures = list(view.pictures)
            has_sheet = view.order is not None and (view.order.sheet or view.order.has_heads)
            async for event in listener.events():
                if event["type"] == "ended":
                    break
                if event["type"] == "picture":
                    pictures.append(PictureView.model_validate(event["picture"]))
                    if len(pictures) == row.plan["pictures"] and not has_sheet:
                        return view.model_copy(update={"state": "done", "pictures": pictures})
        return self.job(job)

    async def picture_bytes(self, picture: str, suffix: str = ".png", quality: int | None = None) -> bytes:
        """Return a picture as a file of a format. Raises as `Library.file_bytes`."""
        return await self.library.file_bytes(picture, suffix, quality)

    async def enlarge(self, data: bytes, upscaler: str, tell: Callable[[int, int], None] | None = None) -> bytes:
        """Return a picture as an upscaler of the catalogue enlarges it, as PNG; jobs that are drawn go before.

        `tell` is called with tiles that are done, and all there are. Who cancels this ends it before the next tile.

        Raises `SourceError` if there is no such upscaler, `UsageError` if it or the picture is none, and
        `SessionError` if it can't be run.
        """
        path, model = find_upscaler(upscaler, self.settings.upscaler_dirs), self.current_model
        found = await self.painter.enlarge(
            seconds=self.settings.time_limit,
            tell=tell or (lambda _done, _total: None),
            upload=(await self.upload(data, "")).id,
            upscaler=str(path.absolute()),
            folder=None if model is None else str(self.catalogue.folder(model)),
        )
        return await self.library.upload_bytes(found["upload"])

    async def upload(self, data: bytes, client: str) -> UploadView:
        """Keep a picture that a client sent. Raises `UsageError` if it is none, and `StoreError` on a full disk."""
        return await self.library.upload(data, client, self.dispatcher.needed_uploads())

    async def copy_picture(self, picture: str, client: str) -> UploadView:
        """Keep a picture of the gallery as an upload of a client. Raises as `upload`, and `SourceError` without one."""
        return await self.library.copy(picture, client, self.dispatcher.needed_uploads())

    async def bring_back(self, uploads: Iterable[str], client: str) -> None:
        """Keep those uploads again, as a client's, that are gone and are pictures of the gallery."""
        if gone := self.library.gone(uploads):
            await self.library.bring_back(gone, client, self.dispatcher.needed_uploads())

    @property
    def current_model(self) -> str | None:
        """The name of the folder that orders without a model get."""
        folders = self.catalogue.folders()
        return self._current if self._current in folders else next(iter(folders), None)

    def set_model(self, name: str) -> None:
        """Make a folder the current one. Raises `SourceError` if none of that name is served."""
        self.catalogue.folder(name)
        self._current = name

    async def models(self) -> list[ModelView]:
        """Return the folders that are served; the first time, their records are read, which takes milliseconds each."""
        loaded = self.catalogue.names_of(self.dispatcher.open_folders)
        return await asyncio.to_thread(self.catalogue.models, loaded)

    async def loras(self) -> list[LoraView]:
        """Return the LoRAs that prompts may name; the first time, their headers are read, once for all who ask."""
        async with self._listing:
            return await asyncio.to_thread(self.catalogue.loras)

    async def loras_with_metadata(self) -> list[tuple[LoraView, Mapping[str, str]]]:
        """Return what `loras` does, each with what its trainer wrote into it."""
        async with self._listing:
            return await asyncio.to_thread(self.catalogue.loras_with_metadata)

    def embeddings(self, model: str | None) -> list[Embedding]:
        """Return the textual inversions that a folder knows."""
        return self.catalogue.embeddings(model)

    async def read_prompt(self, model: str | None, text: str, **asked: bool) -> Json:
        """Return a prompt's tokens and syntax, as `read_tokens` does with what is `asked`."""
        folder = self.catalogue.folder(model or self.current_model or "")
        return await asyncio.to_thread(read_tokens, folder, text, wildcards=self.settings.wildcard_dirs, **asked)

    async def tokens(self, model: str | None, text: str) -> int:
        """Return how many tokens a prompt has. Raises as `read_tokens`."""
        encoders = (await self.read_prompt(model, text))["encoders"]
        return max(int(encoder["count"]) for encoder in encoders)

    async def unload(self) -> None:
        """Close all open folders, once what is drawn is done."""
        self.dispatcher.unload()

    def _require_room(self) -> None:
        if len(self.dispatcher.waiting) >= self.settings.max_queue:
            counts = self.dispatcher.counts
            drawn = sum(counts[state] for state in ENDED) or 1
            raise QueueFull(len(self.dispatcher.waiting), max(1, round(counts["seconds"] / drawn)))

    def _completed(self, order: Order) -> Order:
        """Fix what an order leaves open, so that it makes the same pictures whenever it is drawn."""

        def drawn(axis: Axis | None) -> Axis | None:
            if axis is None or axis.field != "seed":
                return axis
            values = (seed_or_drawn(None) if str(value) == str(RANDOM) else value for value in axis.values)
            return axis.model_copy(update={"values": tuple(values)})

        model = order.model or self.current_model
        if model is None:
            raise SourceError("no model is served yet; convert a checkpoint first, or start the server with a folder")
        usual = self.catalogue.usual(model)
        if "model" in (axis.field for axis in order.axes):
            usual = {}  # Each cell has those of its own.
        left_open = {name: value for name, value in usual.items() if name not in order.model_fields_set}
        sides = {side: drawn(getattr(order, side)) for side in ("x", "y", "z")}
        return order.model_copy(update={**order.drawn_seeds(), **left_open, "model": model, **sides})

    def check_limits(self, order: Order) -> None:
        """Raise `UsageError` for an order of more than is drawn here."""
        limits = self.settings
        if (order.width is None) != (order.height is None):
            raise UsageError("one side alone is given; give width and height, or neither")
        if (pictures := count_cells(order) * order.num_images) > limits.max_images:
            raise UsageError(f"{pictures} pictures; a job here has at most {limits.max_images}")
        for cell in cells(order):
            side = round(max(self._size(cell.order)) * (cell.order.hires or 1))
            if side > limits.max_side:
                raise UsageError(f"a side of {side} pixels is more than the {limits.max_side} that are drawn here")
            steps = max(int(cell.order.steps * (cell.order.strength or 1)), cell.order.hires_steps)  # What is run.
            if steps > limits.max_steps:
                raise UsageError(f"{steps} steps are more than the {limits.max_steps} that are taken here")

    def _size(self, order: Order) -> tuple[int, int]:
        """Return the size that is asked for; of a second pass, too, where that multiplies the folder's own."""
        if order.width and order.height:
            return order.width, order.height
        return open_folder(self.catalogue.folder(order.model or "")).default_size if order.hires else (0, 0)

    def _unended(self, job: str) -> JobRow:
        row = self.journal.job(job)
        if row.state in ENDED:
            raise JobEnded(f"job {job} has ended already: {row.state}")
        return row

    def _client_of(self, event: Event) -> str | None:
        """Return whose job an event is about; `None` of what concerns all."""
        row = self.journal.find(event["job"]) if event.get("job") is not None else None
        return None if row is None else row.client

    def _with_view(self, event: Event) -> Event:
        """Return the event that a job has ended as listeners get it, with how."""
        view = self.job(event["job"])
        return {"type": view.state, "job": view.id, "view": view.model_dump(mode="json")}

    def _view(self, row: JobRow, order: Order | None = None, *, places: Mapping[str, int] | None = None) -> JobView:
        """Return a job as clients see it; `order` is what it asks for, `places` the queue, where these were read."""
        if row.state == "queued" and places is None:
            places = self.dispatcher.waiting.places()
        rows = self.gallery.of_job(row.id) if row.started else []
        views = self.library.views(rows)
        running = self.dispatcher.running.get(row.id)
        progress = running.progress if running is not None else None
        sheet = next((view for one, view in zip(rows, views, strict=True) if one.sheet), None)
        steps, batches = row.plan.get("steps", 0), row.plan.get("batches", 0)
        done = (steps, batches) if row.state == "done" else (0, 0)
        return JobView(
            id=row.id,
            kind=row.kind,
            state=row.state,
            position=(places or {}).get(row.id) if row.state == "queued" else None,
            client=row.client,
            created=iso(row.created) or "",
            started=iso(row.started),
            finished=iso(row.finished),
            order=order or (Order.model_validate(row.asked) if row.kind == "pictures" else None),
            run={**row.asked, **(row.found or {})} if row.kind == "run" else None,
            opening=running.opening if running is not None else None,
            step=progress.step if progress else done[0],
            steps_total=progress.steps_total if progress else steps,
            batch=progress.batch if progress else done[1],
            batches=batches,
            eta_seconds=progress.eta if progress else None,
            pictures=[view for one, view in zip(rows, views, strict=True) if not one.sheet],
            sheet=sheet,
            notes=row.plan.get("notes", []),
            error=ErrorView(**row.error) if row.error else None,
        )
