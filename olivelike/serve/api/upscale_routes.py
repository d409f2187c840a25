"""Upscaling of pictures that are there: what enlarges them, and pictures enlarged into the gallery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final, Self

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from olivelike._installed import own_version
from olivelike.errors import OlivelikeError, SourceError, UsageError
from olivelike.runtime.pictures.picture_reading import read_picture_data
from olivelike.runtime.pictures.picture_record import PictureRecord, UsedFile
from olivelike.serve.api.images import UPSCALERS, Size, in_turn, png, require_side, scaled_to, upright, upscaled
from olivelike.serve.api.native import Client, TheService, answer, require_uploads
from olivelike.serve.api.refusals import RequestRefusedError, StrictRoute, refused
from olivelike.serve.gallery.library import picture_view
from olivelike.serve.orders import Finite, Name, UploadId
from olivelike.serve.service import Service
from olivelike.serve.upscales import Upscale
from olivelike.serve.views import PictureView

router = APIRouter(route_class=StrictRoute)
MOST_TIMES: Final = 8
_MOST_PICTURES: Final = 100
Tell = Callable[[int, int], None]


class UpscaleOrder(BaseModel):
    """Pictures to enlarge, all in the same way: so many times, or to a size as A1111's "Scale to"."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    uploads: Annotated[tuple[UploadId, ...], FailFast(), Field(min_length=1, max_length=_MOST_PICTURES)]
    upscaler: Name
    factor: Annotated[Finite, Field(gt=0, le=MOST_TIMES)] | None = None
    width: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    height: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    crop: bool = True
    """Crop to the size; without, the picture covers it, whole."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.factor is None) != (self.width is not None and self.height is not None):
            raise ValueError("give factor, or width and height")
        return self

    def size_of(self, whole: Size) -> Size:
        """Return the size that a picture of another gets."""
        if self.factor is not None:
            width, height = (max(1, round(side * self.factor)) for side in whole)
            return width, height
        return scaled_to(whole, (self.width or 1, self.height or 1), crop=self.crop)

    @property
    def told(self) -> dict[str, str]:
        """A1111's words for how pictures are enlarged: `scripts/postprocessing_upscale.py`."""
        if self.factor is not None:
            how = {"Postprocess upscale by": f"{self.factor:g}"}
        else:
            how = {"Postprocess upscale to": f"{self.width}x{self.height}"}
        cropped = self.factor is None and self.crop
        crop = {"Postprocess crop to": f"{self.width}x{self.height}"} if cropped else {}
        return {**how, "Postprocess upscaler": self.upscaler, **crop}


def upscaler_names(service: Service) -> list[str]:
    """Return what enlarges pictures: without a network first, then by those that are served."""
    return list(dict.fromkeys((*UPSCALERS[1:], *service.catalogue.upscalers())))


async def enlarged(service: Service, data: bytes, size: Size, upscaler: str, tell: Tell | None = None) -> bytes:
    """Bring a picture to a size: by a network, then without one as far as that is not it. Raises as `enlarge`.

    `tell` is called with tiles that are done, and all there are.
    """
    if upscaler not in UPSCALERS:
        data = await service.enlarge(data, upscaler, tell)
    return await in_turn(lambda: png(upscaled(upright(data, "picture"), size, upscaler)))


@router.get("/api/upscalers")
async def upscalers(service: TheService) -> Response:
    """Return what enlarges pictures; `network` says whether it is a file of --upscaler-dir, as orders name them.

    `scale` is how many times as large a network makes pictures, once it has run.
    """
    files = {name: path for name, path in service.catalogue.upscalers().items() if name not in UPSCALERS}
    scales = {name: service.painter.scale_of(path) for name, path in files.items()}
    names = upscaler_names(service)
    return JSONResponse([{"name": name, "network": name in files, "scale": scales.get(name)} for name in names])


@router.post("/api/upscale", status_code=201)
async def upscale(
    request: Request,
    service: TheService,
    client: Client,
    upscaler: Annotated[str, Query(max_length=300)],
    factor: Annotated[float, Query(gt=0, le=MOST_TIMES, allow_inf_nan=False)],
) -> Response:
    """Enlarge a picture, whose file is the body, and keep it in the gallery with the recipe that it had."""
    _require_upscaler(service, upscaler)
    upload = await service.upload(await request.body(), client)
    asked = UpscaleOrder(uploads=(upload.id,), upscaler=upscaler, factor=factor)
    one = _begin(service, asked, client)
    await one.finished()
    return answer(one.pictures[0], 201)


@router.post("/api/upscales", status_code=202)
async def begin(asked: UpscaleOrder, request: Request, service: TheService, client: Client) -> Response:
    """Begin to enlarge uploads into the gallery, one after the other."""
    _require_upscaler(service, asked.upscaler)
    await require_uploads(request, asked.uploads)
    return JSONResponse(_begin(service, asked, client).view(), 202)


@router.get("/api/upscales")
async def running(service: TheService, client: Client) -> Response:
    """Return a client's enlargements, the oldest first: those that run, and the last that have ended."""
    return JSONResponse([one.view() for one in service.upscales.of(client)])


@router.post("/api/upscales/{upscale_id}/cancel")
async def cancel(upscale_id: str, service: TheService, client: Client) -> Response:
    """End an enlargement before its next tile; pictures that are done stay."""
    one = next((one for one in service.upscales.of(client) if one.id == upscale_id), None)
    if one is None:
        raise SourceError(f"there is no enlargement {upscale_id!r}")
    one.cancel()
    return JSONResponse(one.view())


def _require_upscaler(service: Service, upscaler: str) -> None:
    if upscaler not in (names := upscaler_names(service)):
        raise refused(f"upscaler: there is no {upscaler!r}; there are {', '.join(names)}")


def _begin(service: Service, asked: UpscaleOrder, client: str) -> Upscale:
    async def work(one: Upscale) -> None:
        for upload in asked.uploads:
            try:
                one.pictures.append(await _enlarged_upload(service, asked, upload, client, one.tell))
            except (UsageError, SourceError, RequestRefusedError) as error:
                one.refused.append({"upload": upload, "error": str(error)})
                # Alone, or by what is no network, none would be enlarged.
                if len(one.refused) == one.total or not _is_upscaler(service, asked.upscaler):
                    raise
            one.next()

    return service.upscales.start(client, len(asked.uploads), work, asked.uploads)


def _is_upscaler(service: Service, name: str) -> bool:
    path = service.catalogue.upscalers().get(name)
    return name in UPSCALERS or (path is not None and service.painter.scale_of(path) is not None)


async def _enlarged_upload(service: Service, asked: UpscaleOrder, upload: str, client: str, tell: Tell) -> PictureView:
    data = await service.library.upload_bytes(upload)
    size = asked.size_of(await in_turn(lambda: upright(data, "picture").size))
    require_side(size, service.settings.most_enlarged, "factor: " if asked.factor else "")
    large = await enlarged(service, data, size, asked.upscaler, tell)
    row = await service.library.keep(large, _record(upload, data, asked), client)
    view = picture_view(row)
    service.feed.publish({"type": "picture", "job": None, "number": None, "picture": view.model_dump(mode="json")})
    return view


def _record(upload: str, data: bytes, asked: UpscaleOrder) -> PictureRecord:
    """Return what made the enlarged picture: its recipe, if it had one, and in A1111's words how it was enlarged."""
    try:
        record = read_picture_data(data, "the upload").record
    except OlivelikeError:
        record = None
    if record is None:
        made_by = f"olivelike {own_version()}"
        return PictureRecord("", init_image=UsedFile(f"{upload[:12]}.png", upload), other=asked.told, version=made_by)
    return replace(record, other={**record.other, **asked.told})
