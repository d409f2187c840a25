"""The application: the service while it lives, and what it answers over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from olivelike.serve.api.native import add_errors, router as native
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
    add_errors(app)
    app.include_router(native)
    return app
