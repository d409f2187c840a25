"""Routes that programs ask to see whether A1111 is there, and a page that lists all routes."""

from __future__ import annotations

import html
import secrets
from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter, Request, Response

from olivelike._untrusted import Json
from olivelike.serve.api.drawing import service_of
from olivelike.serve.views import ENDED

probes_router: Final = APIRouter(tags=["A1111"])
_APP: Final = secrets.randbelow(1 << 32)
_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Routes</title>
<link rel="stylesheet" href="/page/style.css"></head><body><main><h1>Routes</h1>
<p>Bodies, parameters and answers are in <a href="/openapi.json">openapi.json</a>.</p>
"""


@probes_router.get("/internal/ping")
async def ping() -> Json:
    """Say that the server answers."""
    return {}


@probes_router.get("/app_id")
async def app_id() -> dict[str, int]:
    """Return a number that is another one after each start, as Gradio has it."""
    return {"app_id": _APP}


@probes_router.get("/queue/status")
async def queue_status(request: Request) -> Json:
    """Return how long the queue is, as Gradio says it."""
    dispatcher = service_of(request).dispatcher
    drawn = sum(dispatcher.counts[state] for state in ENDED)
    each = dispatcher.counts["seconds"] / drawn if drawn else None
    waiting = len(dispatcher.waiting)
    return {
        "msg": "estimation", "rank": None, "queue_size": waiting, "avg_event_process_time": each,
        "avg_event_concurrent_process_time": each, "rank_eta": None, "queue_eta": waiting * (each or 0.0),
    }  # fmt: skip


@probes_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return a page of all routes."""
    return Response("".join(_page(request.app.openapi())), media_type="text/html; charset=utf-8")


def _page(described: Json) -> Iterator[str]:
    yield _HEAD
    sections: dict[str, list[str]] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            first = str(operation.get("description", "")).partition("\n\n")[0]
            cells = (method.upper(), f"<code>{html.escape(path)}</code>", html.escape(first))
            row = "".join(f"<td>{cell}</td>" for cell in cells)
            sections.setdefault(next(iter(operation.get("tags", [])), "olivelike"), []).append(f"<tr>{row}</tr>")
    for name, rows in sections.items():
        yield f"<h2>{html.escape(name)}</h2><table>{''.join(rows)}</table>\n"
    yield "</main></body></html>\n"
