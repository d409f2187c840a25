"""The server's own routes: jobs and what happens to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse

from olivelike.errors import MissingError, OlivelikeError, SessionError, SourceError, StoreError, UsageError
from olivelike.serve.orders import Order
from olivelike.serve.service import JobEnded, QueueFull, Service
from olivelike.serve.views import Event, JobState

router = APIRouter()
_SILENCE: Final = 15.0
"""Seconds after which a stream says that it is still there."""


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


def client_of(request: Request) -> str:
    """Return whose request it is: the name of the key, else the address."""
    known = getattr(request.state, "client", None)
    return str(known or (request.client.host if request.client else "unknown"))


TheService = Annotated[Service, Depends(service_of)]
Client = Annotated[str, Depends(client_of)]


def status_of(error: OlivelikeError) -> int:
    """Return the HTTP status of an error."""
    kinds: tuple[tuple[type[OlivelikeError], int], ...] = (
        (QueueFull, 429), (JobEnded, 409), (UsageError, 422), (SourceError, 404), (StoreError, 507),
        (SessionError, 503), (MissingError, 404),
    )  # fmt: skip
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)


def add_errors(app: FastAPI) -> None:
    """Let errors be answered as `{"error": {"code", "message"}}`."""

    @app.exception_handler(OlivelikeError)
    async def refuse(_: Request, error: OlivelikeError) -> JSONResponse:
        headers = {"Retry-After": str(error.seconds)} if isinstance(error, QueueFull) else None
        content = {"error": {"code": error.word, "message": str(error)}}
        return JSONResponse(content, status_of(error), headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_values(_: Request, error: RequestValidationError) -> JSONResponse:
        found = [f"{'.'.join(str(part) for part in one['loc'][1:])}: {one['msg']}" for one in error.errors()[:10]]
        return JSONResponse({"error": {"code": "usage", "message": "; ".join(found)}}, 422)


def events_of(events: AsyncIterator[Event]) -> StreamingResponse:
    """Return events as a stream: `text/event-stream`."""
    return StreamingResponse(
        _lines(events), media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _lines(events: AsyncIterator[Event]) -> AsyncIterator[str]:
    async def following() -> Event | None:
        return await anext(events, None)

    task = asyncio.ensure_future(following())
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=_SILENCE)
            if not done:
                yield ": still here\n\n"
                continue
            event = task.result()
            if event is None:
                return
            task = asyncio.ensure_future(following())
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        aclose = getattr(events, "aclose", None)
        if aclose is not None:
            await aclose()


@router.post("/api/jobs", status_code=202)
async def submit(order: Order, service: TheService, client: Client) -> Response:
    """Queue an order."""
    view = await service.submit(order, client)
    return Response(view.model_dump_json(), 202, media_type="application/json")


@router.get("/api/jobs")
async def jobs(service: TheService, state: JobState | None = None, limit: Annotated[int, Query(ge=1, le=500)] = 50) -> Response:
    """Return the newest jobs."""
    found = [view.model_dump(mode="json") for view in service.jobs(state, limit)]
    return JSONResponse({"jobs": found})


@router.get("/api/jobs/{job}")
async def job(job: str, service: TheService) -> Response:
    """Return a job."""
    view = service.job(job)
    if view is None:
        raise SourceError(f"there is no job {job!r}")
    return Response(view.model_dump_json(), media_type="application/json")


@router.post("/api/jobs/{job}/cancel")
async def cancel(job: str, service: TheService) -> Response:
    """End a job."""
    return Response(service.cancel(job).model_dump_json(), media_type="application/json")


@router.post("/api/jobs/{job}/skip")
async def skip(job: str, service: TheService) -> Response:
    """End the batch that a job draws."""
    return Response(service.skip(job).model_dump_json(), media_type="application/json")


@router.get("/api/jobs/{job}/events")
async def job_events(job: str, service: TheService, previews: bool = False) -> StreamingResponse:  # noqa: FBT001, FBT002
    """Return what happens to a job."""
    if service.journal.find(job) is None:
        raise SourceError(f"there is no job {job!r}")
    return events_of(service.events(job, previews=previews))


@router.get("/api/events")
async def events(service: TheService, previews: bool = False) -> StreamingResponse:  # noqa: FBT001, FBT002
    """Return what happens to all jobs."""
    return events_of(service.events(previews=previews))


@router.get("/api/models")
async def models(service: TheService) -> Response:
    """Return the folders that are served."""
    return JSONResponse({"models": [one.model_dump(mode="json") for one in service.models()]})


@router.get("/files/{name}")
async def file(name: str, service: TheService) -> Response:
    """Return a picture's file."""
    row = service.gallery.find(name.partition(".")[0])
    if row is None or not (path := service.gallery.path(row)).is_file():
        raise SourceError("there is no such picture")
    return FileResponse(path, media_type="image/png")
