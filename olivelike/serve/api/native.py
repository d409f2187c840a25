"""The server's own routes: jobs, and what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from olivelike.errors import SourceError
from olivelike.serve.api.drawing import service_of
from olivelike.serve.api.guards import client_of, visitor_of
from olivelike.serve.api.refusals import BodyRoute, StrictRoute
from olivelike.serve.orders import Order, no_upload
from olivelike.serve.service import Service
from olivelike.serve.views import Event, JobState

if TYPE_CHECKING:
    from starlette.types import Send

router = APIRouter(route_class=StrictRoute)
_SILENCE: Final = 15.0
"""Seconds after which a stream says that it is still there."""


async def asking_client(request: Request) -> str:
    """Return whose request it is."""
    return client_of(request)


async def asked_service(request: Request) -> Service:
    """Return the server's service."""
    return service_of(request)


async def asked_job(job: str, request: Request) -> str:
    """Return the id of a job that its sender may see. Raises `SourceError` if there is none."""
    require_seen(request, job)
    return job


def require_seen(request: Request, job: str, kind: str = "job") -> None:
    """Raise `SourceError` if there is no job of an id, or it is another key's: nobody is told which of the two."""
    row = service_of(request).journal.find(job)
    if row is None or not visitor_of(request).sees(row.client):
        raise SourceError(f"there is no {kind} {job!r}")


async def require_uploads(request: Request, uploads: Collection[str]) -> None:
    """Have those again that are pictures of the gallery; raise `SourceError` for one that another key sent.

    Whoever sees a picture reads in its record what it was made from: that is no leave to see it, too.
    """
    service, visitor = service_of(request), visitor_of(request)
    await service.bring_back(uploads, visitor.client)
    if visitor.own_uploads is not None:
        for name in sorted(set(uploads) - service.gallery.sent_by(visitor.own_uploads)):
            raise no_upload(name)


Client = Annotated[str, Depends(asking_client)]
TheService = Annotated[Service, Depends(asked_service)]
SeenJob = Annotated[str, Depends(asked_job)]


def answer(view: BaseModel, status: int = 200) -> Response:
    """Return a view as JSON."""
    return Response(view.model_dump_json(), status, media_type="application/json")


def events_of(events: AsyncGenerator[Event, None], written: Callable[[Event], str] | None = None) -> EventStream:
    """Return events as a stream, each as `written` writes it."""
    return EventStream(events, written or _as_event)


def _as_event(event: Event) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


class EventStream(StreamingResponse):
    """Events as they come, `text/event-stream`; where none does for a while, a line says that the stream is there."""

    def __init__(self, events: AsyncGenerator[Event, None], written: Callable[[Event], str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__((), media_type="text/event-stream", headers=headers)  # What it sends is sent below.
        self._events, self._written = events, written
        self._told = 0.0

    async def stream_response(self, send: Send) -> None:
        """Send the events."""

        async def tell(text: str, *, more: bool = True) -> None:
            self._told = time.monotonic()
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        beside = asyncio.ensure_future(self._say_that_it_is_there(tell))
        try:
            async for event in self._events:
                await tell(self._written(event))
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
            await self._events.aclose()
        await tell("", more=False)

    async def _say_that_it_is_there(self, tell: Callable[[str], Coroutine[None, None, None]]) -> None:
        await tell(": here\n\n")  # By now it listens, and who reads this line misses nothing of what comes.
        while True:
            silent = time.monotonic() - self._told
            if silent < _SILENCE:
                await asyncio.sleep(_SILENCE - silent)
            else:
                await tell(": still here\n\n")


async def submit(request: Request, order: Order) -> Response:
    """Queue an order; its model is the current one from now on."""
    service = service_of(request)
    if order.uploads:
        await require_uploads(request, order.uploads)
    view = await service.submit(order, client_of(request))
    if view.order is not None and view.order.model is not None:
        with contextlib.suppress(SourceError):  # Its folder may be gone already.
            service.set_model(view.order.model)
    return answer(view, 202)


router.add_api_route("/api/jobs", submit, methods=["POST"], status_code=202, route_class_override=BodyRoute)


@router.get("/api/jobs")
async def jobs(
    request: Request,
    service: TheService,
    state: JobState | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Return the newest jobs; where keys are wanted, the sender's."""
    found = service.jobs(state, limit, client=visitor_of(request).own)
    return JSONResponse({"jobs": [view.model_dump(mode="json") for view in found]})


@router.get("/api/jobs/{job}")
async def job(job: SeenJob, service: TheService) -> Response:
    """Return a job."""
    return answer(service.job(job))


@router.post("/api/jobs/{job}/cancel")
async def cancel(job: SeenJob, service: TheService) -> Response:
    """End a job."""
    return answer(service.cancel(job))


@router.post("/api/jobs/{job}/skip")
async def skip(job: SeenJob, service: TheService) -> Response:
    """End the batch that a job draws."""
    return answer(service.skip(job))


class Moving(BaseModel):
    """Where a job goes that waits."""

    model_config = ConfigDict(extra="forbid")
    places: Annotated[int, Field(ge=-10_000, le=10_000)]
    """Among those of its client; earlier below 0."""


@router.post("/api/jobs/{job}/move")
async def move(job: SeenJob, moving: Moving, service: TheService) -> Response:
    """Draw a job earlier or later than others of its client."""
    return answer(service.move(job, moving.places))


@router.get("/api/jobs/{job}/events")
async def job_events(job: SeenJob, service: TheService, previews: bool = False) -> EventStream:
    """Return what happens to a job."""
    return events_of(service.events(job, previews=previews))


@router.get("/api/events")
async def events(request: Request, service: TheService, previews: bool = False) -> EventStream:
    """Return what happens to all jobs; where keys are wanted, to the sender's."""
    return events_of(service.events(previews=previews, client=visitor_of(request).own))
