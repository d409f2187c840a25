"""The application: the service while it lives, and what it answers over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from olivelike import __version__
from olivelike.serve.api.a1111 import a1111_router
from olivelike.serve.api.a1111_guides import guides_router
from olivelike.serve.api.a1111_probes import probes_router
from olivelike.serve.api.catalogue_routes import router as catalogue
from olivelike.serve.api.comfyui import comfyui_router
from olivelike.serve.api.gallery_routes import router as gallery
from olivelike.serve.api.guards import GuardRules, Guards
from olivelike.serve.api.health import router as health
from olivelike.serve.api.native import router as native
from olivelike.serve.api.notebook_routes import router as notebook
from olivelike.serve.api.openai import openai_router
from olivelike.serve.api.page_routes import router as page
from olivelike.serve.api.refusals import add_handlers
from olivelike.serve.api.run_routes import router as runs
from olivelike.serve.api.upscale_routes import router as upscaling
from olivelike.serve.runs.run_orders import runs_are_allowed
from olivelike.serve.runs.workflow_jobs import Runs
from olivelike.serve.service import Service
from olivelike.serve.settings import ServeSettings


def create_app(settings: ServeSettings) -> FastAPI:
    """Return the application for settings: with the gallery open; its lifespan starts the process that draws.

    Raises what `Service` does if the gallery or a folder can't be had, and so for folders of runs.
    """
    runs_allowed = runs_are_allowed(settings)
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await service.start()
            if runs_allowed:
                service.runs = Runs(settings, service.catalogue, service.gallery, service.feed)
                await service.runs.start()
            yield
        finally:
            if service.runs is not None:
                await service.runs.close()
            await service.close()

    app = FastAPI(title="olivelike", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    add_handlers(app)
    app.add_middleware(Guards, rules=_rules(settings))
    # In turn they are asked whether a request is theirs; ComfyUI's has routes that are others' before.
    drawing, others = (native, a1111_router, openai_router), (guides_router, probes_router, comfyui_router)
    for router in (*drawing, gallery, catalogue, notebook, upscaling, health, page, runs, *others):
        app.include_router(router)
    return app


def _rules(settings: ServeSettings) -> GuardRules:
    hosts, origins = (frozenset(map(str.lower, one)) for one in (settings.allow_hosts, settings.allow_origins))
    return GuardRules(settings.host, hosts, origins, settings.api_keys, settings.basic, settings.max_body)
