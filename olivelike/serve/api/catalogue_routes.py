"""Lists of all that a request may name: models, LoRAs, schedulers, bounds of every field, and the syntax of prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict

from olivelike import __version__
from olivelike._untrusted import Json
from olivelike.errors import SourceError
from olivelike.runtime.schedulers.scheduler_names import scheduler_names
from olivelike.serve.api.guards import Visitor, is_loopback, visitor_of
from olivelike.serve.api.native import TheService
from olivelike.serve.api.refusals import StrictRoute
from olivelike.serve.form import bounds
from olivelike.serve.orders import Name, Text
from olivelike.serve.settings import ServeSettings
from olivelike.serve.views import LISTED_GUIDES, ModelView

Model = Annotated[str | None, Query(max_length=300)]
"""Name of a folder; `None` is the current one."""
router = APIRouter(route_class=StrictRoute)
_OF_PROXIES: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
"""Headers by which a proxy tells that it brings a request; that there is one says less than none, and is believed."""


class PromptQuestion(BaseModel):
    """A prompt to be read."""

    model_config = ConfigDict(extra="forbid")
    model: Name | None = None
    text: Text
    negative: bool = False
    prompt_weights: bool = True


@router.get("/api/models")
async def models(service: TheService) -> Response:
    """Return the folders that are served."""
    return JSONResponse([one.model_dump(mode="json") for one in await service.models()])


@router.post("/api/models/unload", status_code=204)
async def unload(service: TheService) -> Response:
    """Close all open folders, once what is drawn is done."""
    await service.unload()
    return Response(status_code=204)


@router.get("/api/loras")
async def loras(service: TheService) -> Response:
    """Return the LoRAs that prompts may name."""
    found = await service.loras()
    return JSONResponse([one.model_dump(mode="json") for one in found])


@router.get("/api/loras/{name:path}/thumbnail")
async def thumbnail(name: str, service: TheService) -> Response:
    """Return the picture beside a LoRA."""
    return FileResponse(await asyncio.to_thread(service.catalogue.thumbnail, name))


@router.get("/api/schedulers")
async def schedulers(service: TheService, model: Model = None) -> Response:
    """Return the names of schedulers that a folder is drawn with, A1111's first."""
    made_for = _view(service, model).scheduler if model or service.current_model else None
    return JSONResponse([{"name": name} for name in scheduler_names(made_for)])


@router.get("/api/embeddings")
async def embeddings(service: TheService, model: str | None = None) -> Response:
    """Return the textual inversions that a folder knows."""
    found = service.embeddings(model or service.current_model)
    return JSONResponse([{"name": one.name, "vectors": one.vectors, "width": one.width} for one in found])


@router.get("/api/wildcards")
async def wildcards(service: TheService) -> Response:
    """Return the files that prompts may choose from."""
    return JSONResponse([{"name": name} for name in await asyncio.to_thread(service.catalogue.wildcards)])


@router.post("/api/tokens")
async def tokens(question: PromptQuestion, service: TheService) -> Response:
    """Return what a prompt is to the text encoders, and where its syntax is."""
    return JSONResponse(await service.read_prompt(**question.model_dump()))


@router.get("/api/options")
async def options(service: TheService, model: Model = None) -> Response:
    """Return defaults and bounds of an order's fields for a folder."""
    view = _view(service, model)
    return JSONResponse(
        {
            "model": view.name,
            "fields": _fields(service, view),
            "samplers": service.catalogue.samplers(view.name) if view.state == "ready" else None,
            "negative_prompt": view.takes_negative_prompt,
            "takes_pictures": view.takes_pictures,
            "most_references": view.most_references,
            "inpaints": view.inpaints,
            "has_safety_checker": view.has_safety_checker,
            **{name: getattr(view, name) for name in LISTED_GUIDES},
        }
    )


def _view(service: TheService, model: str | None) -> ModelView:
    """Return a folder, by default the current one. Raises `SourceError` if it is not served."""
    name = model or service.current_model
    view = service.catalogue.model(name or "")
    if view is None:
        raise SourceError(f"no model {name!r} is served")
    return view


def _fields(service: TheService, model: ModelView) -> Json:
    """Return the fields as the order's own schema has them, with what folder and operator say on top.

    A `value` is what a form begins with where that is another than the default of orders.
    """
    fields = bounds()
    limits = service.settings
    for side, length in zip(("width", "height"), model.default_size, strict=True):
        fields[side] = {"default": length, "min": model.size_unit, "max": limits.max_side, "step": model.size_unit}
    fields["strength"] |= {"default": 0.8, "min": 0.01, "max": 1}
    fields["steps"]["max"], fields["num_images"]["max"] = limits.max_steps, limits.max_images
    fields["scheduler"]["default"] = model.scheduler
    for name, usual in model.usual.items():
        fields[name]["default"] = usual
    for name, value in service.catalogue.begins_with(model.name).items() if model.state == "ready" else ():
        fields[name]["value"] = value
    for name in model.absent:
        fields[name]["absent"] = True
    return fields


def tells_whole_paths(visitor: Visitor, headers: Container[str], settings: ServeSettings) -> bool:
    """Tell whether a visitor has the only key, or nobody but who sits at this machine reaches the server at all.

    What a proxy on it has brought, by its headers, may be from anywhere.
    """
    others = (settings.api_keys, settings.basic, settings.allow_hosts, settings.allow_origins, settings.proxies)
    is_brought = any(name in headers for name in _OF_PROXIES)
    return visitor.alone or (is_loopback(settings.host) and not any(others) and not is_brought)


@router.get("/api/server")
async def server(request: Request, service: TheService) -> Response:
    """Return what the server is, and what may be asked of it."""
    limits = service.settings
    return JSONResponse(
        {
            "version": __version__,
            "models": list(service.catalogue.folders()),
            "current": service.current_model,
            "features": {"runs": service.runs is not None, "loras": bool(service.catalogue.lora_files())},
            "limits": {
                "max_side": limits.max_side, "max_steps": limits.max_steps, "max_pictures": limits.max_images,
                "max_enlarged": limits.most_enlarged,
                "max_upload_bytes": limits.max_body, "max_queue": limits.max_queue, "time_limit": limits.time_limit,
            },
            "auth": bool(limits.api_keys or limits.basic),
            "safety": limits.safety,
            "allows": {
                "runs": service.runs is not None, "metadata": limits.metadata, "pickled": limits.allow_pickle,
                "plugins": limits.allow_plugins, "lenient": limits.ignore_unsupported,
            },
            "folders": limits.places(whole=tells_whole_paths(visitor_of(request), request.headers, limits)),
            "providers": list(limits.providers),
        }
    )  # fmt: skip
