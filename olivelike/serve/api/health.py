"""Whether the server lives, whether it can draw, and its figures in the text form of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from olivelike._memory import resident
from olivelike.serve.api.native import TheService
from olivelike.serve.service import Service
from olivelike.serve.views import ENDED

router = APIRouter()
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz")
async def healthz() -> Response:
    """Say that the server answers."""
    return JSONResponse({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz")
async def readyz(service: TheService) -> Response:
    """Say whether a picture could be drawn now."""
    if not service.painter.is_ready:
        return JSONResponse({"status": "starting", "why": "the process that draws is not ready"}, 503)
    if not any(model.state == "ready" for model in await service.models()):
        return JSONResponse({"status": "no model", "why": "no folder that is served can be read"}, 503)
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(service: TheService) -> Response:
    """Return the server's figures."""
    return Response("".join(_lines(service)), media_type=_TEXT)


def _lines(service: Service) -> Iterator[str]:
    counts, dispatcher = service.dispatcher.counts, service.dispatcher
    ended = {f'state="{state}"': counts[state] for state in sorted(ENDED)}
    memory = {'process="server"': resident(os.getpid())}
    if (pid := service.painter.pid) is not None:
        memory['process="painter"'] = resident(pid)
    yield from _family("jobs_total", "counter", "Jobs by how they ended.", ended)
    yield from _family("pictures_total", "counter", "Pictures drawn.", {"": counts["pictures"]})
    yield from _family("drawing_seconds_total", "counter", "Time that jobs were drawn.", {"": counts["seconds"]})
    yield from _family("painter_starts_total", "counter", "Starts of the process that draws.", {"": counts["starts"]})
    yield from _family("jobs_waiting", "gauge", "Jobs in the queue.", {"": len(dispatcher.waiting)})
    yield from _family("jobs_drawing", "gauge", "Jobs that are drawn.", {"": len(dispatcher.running)})
    yield from _family("folders_open", "gauge", "Folders kept open.", {"": len(dispatcher.open_folders)})
    yield from _family("memory_bytes", "gauge", "Resident memory.", memory)


def _family(name: str, kind: str, help_text: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP olivelike_{name} {help_text}\n# TYPE olivelike_{name} {kind}\n"
    for labels, value in values.items():
        yield f"olivelike_{name}{f'{{{labels}}}' if labels else ''} {value}\n"
