"""The application: the service while it lives, and what it answers over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from olivelike.serve.api.a1111 import a1111_router
from olivelike.serve.api.native import router as native
from olivelike.serve.api.openai import openai_router
from olivelike.serve.guards import GuardRules, Guards
from olivelike.serve.refusals import add_handlers
from olivelike.serve.service import Service
from olivelike.serve.settings import ServeSettings


def create_app(settings: ServeSettings) -> FastAPI:
    """Return the application for settings; its lifespan opens the gallery and starts the process that draws.

    Raises `OlivelikeError` at the start of the lifespan if the gallery or a folder can't be had.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings)
        app.state.service = service
        try:
            await service.start()
            yield
        finally:
            await service.close()

    app = FastAPI(title="olivelike", version=version("olivelike"), lifespan=lifespan, docs_url=None, redoc_url=None)
    add_handlers(app)
    app.add_middleware(Guards, rules=_rules(settings))
    for router in (native, openai_router, a1111_router):
        app.include_router(router)
    return app


def _rules(settings: ServeSettings) -> GuardRules:
    hosts, origins = (frozenset(map(str.lower, one)) for one in (settings.allow_hosts, settings.allow_origins))
    return GuardRules(settings.host, hosts, origins, settings.api_keys, settings.basic, settings.max_body)
