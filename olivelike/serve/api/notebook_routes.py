"""Styles of prompts and presets of the form over HTTP: what people keep for the next time."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from olivelike._untrusted import Json
from olivelike.serve.api.native import TheService
from olivelike.serve.api.refusals import StrictRoute
from olivelike.serve.gallery.notebook import Preset, Style
from olivelike.serve.orders import Text

router = APIRouter(route_class=StrictRoute)
KeptName = Annotated[str, Path(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]*[^\x00-\x1f\s][^\x00-\x1f]*$")]


class StyleWords(BaseModel):
    """The words of a style."""

    model_config = ConfigDict(extra="forbid")
    prompt: Text = ""
    negative_prompt: Text = ""


@router.get("/api/styles")
async def styles(service: TheService) -> Response:
    """Return all styles."""
    found = await asyncio.to_thread(service.notebook.styles)
    return JSONResponse([one.model_dump() for one in found])


@router.put("/api/styles/{name:path}", status_code=204)
async def keep_style(name: KeptName, words: StyleWords, service: TheService) -> Response:
    """Keep a style, in place of one of its name."""
    await asyncio.to_thread(service.notebook.keep_style, Style(name=name.strip(), **words.model_dump()))
    return Response(status_code=204)


@router.delete("/api/styles/{name:path}", status_code=204)
async def drop_style(name: KeptName, service: TheService) -> Response:
    """Forget a style."""
    await asyncio.to_thread(service.notebook.drop_style, name.strip())
    return Response(status_code=204)


@router.get("/api/presets")
async def presets(service: TheService) -> Response:
    """Return all presets."""
    found = await asyncio.to_thread(service.notebook.presets)
    return JSONResponse([one.model_dump() for one in found])


@router.put("/api/presets/{name:path}", status_code=204)
async def keep_preset(name: KeptName, form: Json, service: TheService) -> Response:
    """Keep what a form holds, in place of a preset of that name."""
    await asyncio.to_thread(service.notebook.keep_preset, Preset(name=name.strip(), form=form))
    return Response(status_code=204)


@router.delete("/api/presets/{name:path}", status_code=204)
async def drop_preset(name: KeptName, service: TheService) -> Response:
    """Forget a preset."""
    await asyncio.to_thread(service.notebook.drop_preset, name.strip())
    return Response(status_code=204)
