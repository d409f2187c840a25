"""Upscaling of pictures that are there: what enlarges them, and a picture enlarged into the gallery."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from olivelike._installed import own_version
from olivelike.runtime.pictures.picture_record import PictureRecord, UsedFile, record_from_json
from olivelike.serve.api.images import UPSCALERS, Size, in_turn, png, require_side, upright, upscaled
from olivelike.serve.api.native import Client, TheService, answer
from olivelike.serve.api.refusals import StrictRoute, refused
from olivelike.serve.gallery.library import picture_view
from olivelike.serve.service import Service
from olivelike.serve.views import UploadView

router = APIRouter(route_class=StrictRoute)
MOST_TIMES: Final = 8


def upscaler_names(service: Service) -> list[str]:
    """Return what enlarges pictures: without a network first, then by those that are served."""
    return list(dict.fromkeys((*UPSCALERS[1:], *service.catalogue.upscalers())))


async def enlarged(service: Service, data: bytes, size: Size, upscaler: str) -> bytes:
    """Bring a picture to a size: by a network, then without one as far as that is not it. Raises as `enlarge`."""
    if upscaler not in UPSCALERS:
        data = await service.enlarge(data, upscaler)
    return await in_turn(lambda: png(upscaled(upright(data, "picture"), size, upscaler)))


@router.get("/api/upscalers")
async def upscalers(service: TheService) -> Response:
    """Return what enlarges pictures; `network` says whether it is a file of --upscaler-dir, as orders name them."""
    return JSONResponse([{"name": name, "network": name not in UPSCALERS} for name in upscaler_names(service)])


@router.post("/api/upscale", status_code=201)
async def upscale(
    request: Request,
    service: TheService,
    client: Client,
    upscaler: Annotated[str, Query(max_length=300)],
    factor: Annotated[float, Query(gt=0, le=MOST_TIMES, allow_inf_nan=False)],
) -> Response:
    """Enlarge a picture, whose file is the body, and keep it in the gallery with the recipe that it had."""
    if upscaler not in (names := upscaler_names(service)):
        raise refused(f"upscaler: there is no {upscaler!r}; there are {', '.join(names)}")
    upload = await service.upload(await request.body(), client)
    width, height = (max(1, round(side * factor)) for side in (upload.width, upload.height))
    require_side((width, height), service.settings.most_enlarged, "factor: ")
    data = await service.library.upload_bytes(upload.id)
    whole = await in_turn(lambda: upright(data, "picture").size)
    size = (width, height) if whole == (upload.width, upload.height) else (height, width)
    large = await enlarged(service, data, size, upscaler)
    row = await service.library.keep(large, _record(upload, upscaler, factor), client)
    view = picture_view(row)
    service.feed.publish({"type": "picture", "job": None, "number": None, "picture": view.model_dump(mode="json")})
    return answer(view, 201)


def _record(upload: UploadView, upscaler: str, factor: float) -> PictureRecord:
    """Return what made the enlarged picture: its recipe, if it had one, and in A1111's words how it was enlarged."""
    enlarging = {"Postprocess upscale by": f"{factor:g}", "Postprocess upscaler": upscaler}
    if upload.record is None:
        name = f"{upload.id[:12]}.png"
        made_by = f"olivelike {own_version()}"
        return PictureRecord("", init_image=UsedFile(name, upload.id), other=enlarging, version=made_by)
    record = record_from_json(json.dumps(upload.record), "the upload")
    return replace(record, other={**record.other, **enlarging})
