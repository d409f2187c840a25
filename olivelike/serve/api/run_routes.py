"""Routes of workflows, conversions and what becomes of them; only where the operator has named folders for them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse

from olivelike._untrusted import Json
from olivelike.errors import SourceError
from olivelike.model.plugin_targets import target_names
from olivelike.serve.api.guards import visitor_of
from olivelike.serve.api.native import Client, TheService, events_of, require_seen
from olivelike.serve.api.refusals import StrictRoute
from olivelike.serve.runs.run_orders import RunOrder, description, has_source
from olivelike.serve.runs.workflow_jobs import Runs

router = APIRouter(route_class=StrictRoute)
_PRECISIONS: Final = ("fp32", "fp16", "bf16")
_REPORT_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The report has names that strangers gave: no script of it runs, and it asks nobody for anything."""


def runs_of(service: TheService) -> Runs:
    """Return the runs of the service. Raises `SourceError` where there are none."""
    if service.runs is None:
        raise SourceError("this server runs no workflows; its operator can say --workflows or --checkpoints")
    return service.runs


TheRuns = Annotated[Runs, Depends(runs_of)]


async def asked_run(run: str, runs: TheRuns, request: Request) -> str:
    """Return the id of a run that its sender may see. Raises `SourceError` if there is none."""
    require_seen(request, run, "run")
    runs.run(run)
    return run


SeenRun = Annotated[str, Depends(asked_run)]


@router.get("/api/workflows")
def workflows(runs: TheRuns) -> Json:
    """Return the workflows that may be run, those first whose source is here, and what a conversion may say."""
    listed, targets = runs.listings.workflows(), target_names()
    settings = [
        {"name": "target", "type": "choice", "default": None, "choices": targets},
        {"name": "precision", "type": "choice", "default": None, "choices": list(_PRECISIONS)},
    ]
    convert = {"targets": targets, "precisions": list(_PRECISIONS), "loras": sorted(runs.listings.loras())}
    found = [
        {"name": name, "description": description(place), "source_here": has_source(place), "settings": settings}
        for name, place in sorted(listed.items())
    ]
    found.sort(key=lambda one: not one["source_here"])
    return {"workflows": found, "convert": convert if runs.listings.checkpoints() else None}


@router.get("/api/checkpoints")
def checkpoints(runs: TheRuns) -> Json:
    """Return the checkpoints that may be converted."""
    return {"checkpoints": [{"name": name} for name in runs.listings.checkpoints()]}


@router.post("/api/runs/plan")
async def plan(order: RunOrder, runs: TheRuns) -> Json:
    """Return what a run would do."""
    return {"lines": await runs.plan(order)}


@router.post("/api/runs", status_code=202)
async def submit(order: RunOrder, runs: TheRuns, client: Client) -> Response:
    """Queue a run."""
    return JSONResponse((await runs.submit(order, client)).model_dump(mode="json"), 202)


@router.get("/api/runs")
async def listing(runs: TheRuns, request: Request, limit: Annotated[int, Query(ge=1, le=500)] = 50) -> Json:
    """Return the newest runs; where keys are wanted, the sender's."""
    found = runs.runs(limit, client=visitor_of(request).own)
    return {"runs": [view.model_dump(mode="json") for view in found]}


@router.get("/api/runs/{run}")
async def run(run: SeenRun, runs: TheRuns) -> Json:
    """Return a run."""
    return runs.run(run).model_dump(mode="json")


@router.post("/api/runs/{run}/cancel")
async def cancel(run: SeenRun, runs: TheRuns, service: TheService) -> Json:
    """End a run."""
    service.cancel(run)
    return runs.run(run).model_dump(mode="json")


@router.get("/api/runs/{run}/events")
async def events(run: SeenRun, runs: TheRuns, after: Annotated[int, Query(ge=0)] = 0) -> StreamingResponse:
    """Return what has happened in a run behind event number `after`, and what happens."""
    return events_of(runs.events(run, after))


@router.get("/api/runs/{run}/report")
async def report(run: SeenRun, runs: TheRuns) -> FileResponse:
    """Return the report of a run."""
    headers = {"Content-Security-Policy": _REPORT_POLICY, "Cache-Control": "no-store"}
    return FileResponse(runs.report(run), media_type="text/html; charset=utf-8", headers=headers)
