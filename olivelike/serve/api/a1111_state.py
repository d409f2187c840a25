"""State that A1111's API keeps between requests: options, each client's model, and previews while somebody looks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from olivelike.serve.api.drawing import service_of
from olivelike.serve.api.guards import client_of

if TYPE_CHECKING:
    from fastapi import Request

    from olivelike.serve.service import Service

_STILL_LOOKED_AT: Final = 10.0
"""Seconds since somebody last asked for the picture that grows."""
_MOST_CLIENTS: Final = 1000


@dataclass(frozen=True)
class Chosen:
    """Options as a client has set them."""

    model: str | None = None
    """Name of a folder."""
    suffix: str = ".png"
    clip_skip: int = 1
    eta_ddim: float = 0.0


class WebUI:
    """Options of each client, and the last preview of each job, gathered while somebody asks for progress."""

    def __init__(self) -> None:
        self._chosen: dict[str, Chosen] = {}
        """By client, the latest choice last."""
        self._previews: dict[str, str] = {}
        self._asked = 0.0
        self._listening: asyncio.Task[None] | None = None

    def chosen(self, client: str) -> Chosen:
        """Return a client's options."""
        return self._chosen.get(client, _USUAL)

    def choose(self, client: str, **options: Any) -> None:
        """Let a client's requests have options where they name none."""
        chosen = replace(self._chosen.pop(client, _USUAL), **options)
        self._chosen[client] = chosen
        if len(self._chosen) > _MOST_CLIENTS:
            del self._chosen[next(iter(self._chosen))]

    def model_of(self, service: Service, client: str) -> str | None:
        """Return the folder that a client chose; of one that did not, the server's current one."""
        chosen = self.chosen(client).model
        return chosen if chosen is not None and chosen in service.catalogue.folders() else service.current_model

    def preview(self, service: Service, job: str) -> str | None:
        """Return how a job's picture looks now, as a data URL; from the second question on."""
        self._asked = time.monotonic()
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(service))
        return self._previews.get(job)

    async def _listen(self, service: Service) -> None:
        async for event in service.events(previews=True):
            if event["type"] == "step" and event.get("preview"):
                self._previews = {event["job"]: event["preview"]}
            if time.monotonic() - self._asked > _STILL_LOOKED_AT:
                break
        self._previews = {}


_USUAL: Final = Chosen()


def webui_of(request: Request) -> WebUI:
    """Return the state that A1111's API has beside the service."""
    state = request.app.state
    if not hasattr(state, "webui"):
        state.webui = WebUI()
    webui: WebUI = state.webui
    return webui


def chosen_of(request: Request) -> Chosen:
    """Return the options of the client that asks."""
    return webui_of(request).chosen(client_of(request))


def model_of(request: Request) -> str | None:
    """Return the name of the folder that draws for a client that names none."""
    return webui_of(request).model_of(service_of(request), client_of(request))
