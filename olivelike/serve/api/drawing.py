"""Drawing for the APIs of others: an order that is drawn while its client waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from olivelike.errors import error_of
from olivelike.serve.api.refusals import RequestRefusedError, in_words, status_of
from olivelike.serve.orders import Order
from olivelike.serve.service import Service
from olivelike.serve.views import JobEnded, JobView, ModelView

if TYPE_CHECKING:
    from fastapi import Request


def service_of(request: Request) -> Service:
    """Return the server's service."""
    service: Service = request.app.state.service
    return service


def find_model(service: Service, name: str | None) -> ModelView | None:
    """Return the folder of a name, or of what other programs call it: title, file name or hash."""
    plain = (name or "").strip().removesuffix(".safetensors")
    return service.catalogue.model(plain) if plain else None


def make_order(names: Mapping[str, str] | None = None, /, **fields: Any) -> Order:
    """Return an order of fields, those that are `None` left out.

    Raises `RequestRefusedError` if one can't be had, by the name that it has in `names`, if any.
    """
    try:
        return Order(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        message, param = in_words(error.errors(), names)
        raise RequestRefusedError(422, "invalid", message, param=param) from None


async def drawn(request: Request, job: str) -> JobView:
    """Wait for a job, which is cancelled if its client leaves. Raises `RequestRefusedError` if it fails."""
    service = service_of(request)
    watching = asyncio.ensure_future(_cancel_once_left(request, service, job))
    try:
        return require_done(await service.drawn(job))
    finally:
        watching.cancel()


def require_done(job: JobView) -> JobView:
    """Return a job that is done. Raises `RequestRefusedError` for another, with why it failed."""
    if job.state == "done":
        return job
    if job.error is None:
        raise RequestRefusedError(409, "cancelled", "the job was cancelled")
    raise RequestRefusedError(status_of(error_of(job.error.code)), job.error.code, job.error.message)


async def _cancel_once_left(request: Request, service: Service, job: str) -> None:
    with contextlib.suppress(RuntimeError):
        while (await request.receive())["type"] != "http.disconnect":
            pass
    with contextlib.suppress(JobEnded):
        service.cancel(job)
