"""Pictures and uploads over HTTP; ids are looked up, and no path is made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, FailFast, Field

from olivelike.runtime.pictures.picture_reading import decode_image
from olivelike.runtime.pictures.preprocessors import NONE, PREPROCESSORS, check_preprocessor, preprocessed
from olivelike.serve.api.a1111_guides import Threshold
from olivelike.serve.api.forms import read_form
from olivelike.serve.api.guards import visitor_of
from olivelike.serve.api.images import a1111_mask, in_turn, png
from olivelike.serve.api.native import Client, TheService, answer, require_uploads
from olivelike.serve.api.refusals import RequestRefusedError, StrictRoute, refused
from olivelike.serve.gallery.gallery import Filter
from olivelike.serve.gallery.library import no_picture
from olivelike.serve.gallery.search_terms import searched
from olivelike.serve.orders import UploadId
from olivelike.serve.recipe_views import RecipeQuestion, for_the_form, read_question
from olivelike.serve.service import Service

router = APIRouter(route_class=StrictRoute)
_MASK: Final = "mask"
"""Reads a picture as a mask, among preprocessors."""
_TYPES: Final = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
_ID: Final = "[0-9a-f]{20}"
_MOST: Final = 500
"""Pictures of a request."""
PictureId = Annotated[str, Field(pattern=f"^{_ID}$")]
Ids = Annotated[str, Query(pattern=f"^{_ID}(,{_ID}){{0,{_MOST - 1}}}$")]
"""Ids of pictures, with commas."""
_FOR_EVER: Final = {"Cache-Control": "private, max-age=31536000, immutable"}
"""An id is that of the content."""


async def asked_filter(
    search: Annotated[str, Query(max_length=500)] = "",
    model: Annotated[str | None, Query(max_length=300)] = None,
    ids: Ids | None = None,
) -> Filter:
    """Return what pictures are to have in common, or which they are."""
    wanted = searched(search, model)
    return wanted if ids is None else replace(wanted, ids=tuple(ids.split(",")))


Wanted = Annotated[Filter, Depends(asked_filter)]


@router.get("/api/pictures")
async def pictures(
    service: TheService,
    wanted: Wanted,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Return the newest pictures whose recipe has all words; with the first of them, how many there are in all."""
    found, older = service.library.search(wanted, before=before, limit=limit)
    total = None if before else len(found) if older is None else service.gallery.count(wanted)
    return JSONResponse({"pictures": [one.model_dump(mode="json") for one in found], "next": older, "total": total})


@router.get("/api/pictures/ids")
async def picture_ids(service: TheService, wanted: Wanted) -> Response:
    """Return the id of each picture whose recipe has all words, and whether it is a favourite."""
    return JSONResponse([{"id": one, "favourite": liked} for one, liked in service.gallery.marks(wanted)])


@router.get("/api/pictures/archive.zip")
async def archive(service: TheService, ids: Ids) -> Response:
    """Return chosen pictures as one ZIP file."""
    return _zip(service, ids)


@router.post("/api/pictures/archive.zip")
async def archive_of_form(request: Request, service: TheService) -> Response:
    """Return the pictures whose `ids` a form has as one ZIP file: more than an address has room for."""
    fields, _ = await read_form(request)
    return _zip(service, fields.get("ids", ""))


def _zip(service: Service, ids: str) -> Response:
    parts = service.library.archive(ids.split(","))
    named = {"Content-Disposition": 'attachment; filename="pictures.zip"'}
    return StreamingResponse(parts, media_type="application/zip", headers=named)


@router.get("/api/pictures/sheet.png")
async def sheet(service: TheService, ids: Ids) -> Response:
    """Return chosen pictures on one sheet."""
    named = {"Content-Disposition": 'attachment; filename="sheet.png"'}
    return Response(await service.library.sheet(ids.split(",")), media_type="image/png", headers=named)


class Chosen(BaseModel):
    """Several pictures."""

    model_config = ConfigDict(extra="forbid")
    ids: Annotated[tuple[PictureId, ...], FailFast(), Field(min_length=1, max_length=_MOST)]


class Liked(Chosen):
    """Several pictures that are to be favourites, or none."""

    liked: bool = True


@router.post("/api/pictures/delete")
async def delete_all(chosen: Chosen, request: Request, service: TheService) -> Response:
    """Delete pictures, as one is; the answer says of each whether it is deleted, and why not."""
    return answer(await service.library.delete_all(chosen.ids, visitor_of(request).may_delete))


@router.post("/api/pictures/favourite")
async def like_all(chosen: Liked, service: TheService) -> Response:
    """Make pictures favourites, or none; the answer has those that are there."""
    return JSONResponse({"marked": service.library.mark_favourites(chosen.ids, liked=chosen.liked)})


@router.post("/api/pictures/refresh")
async def refresh(service: TheService) -> Response:
    """Look for files that came into the gallery's folders, or went, while the server runs."""
    added, removed = await service.library.refresh()
    return JSONResponse({"added": added, "removed": removed})


@router.get("/api/pictures/{picture}")
async def picture(picture: str, service: TheService) -> Response:
    """Return a picture, and what made it."""
    return answer(service.library.views([service.library.find(picture)])[0])


@router.delete("/api/pictures/{picture}", status_code=204)
async def delete(picture: str, request: Request, service: TheService) -> Response:
    """Delete a picture of one's own; where no keys are wanted, any."""
    maker = service.library.maker(picture)
    if not visitor_of(request).may_delete(maker):
        whose = "another key's" if maker else "of nobody who is known here"
        raise RequestRefusedError(
            403,
            "not_yours",
            f"this picture is {whose}: a key deletes its own, and the operator any file of the gallery",
        )
    service.library.delete(picture)
    return Response(status_code=204)


@router.put("/api/pictures/{picture}/favourite", status_code=204)
async def like(picture: str, service: TheService) -> Response:
    """Make a picture a favourite."""
    service.library.mark_favourite(picture, liked=True)
    return Response(status_code=204)


@router.delete("/api/pictures/{picture}/favourite", status_code=204)
async def like_no_more(picture: str, service: TheService) -> Response:
    """Make a picture no favourite."""
    service.library.mark_favourite(picture, liked=False)
    return Response(status_code=204)


@router.head("/files/{name}", include_in_schema=False)
@router.get("/files/{name}")
async def file(name: str, service: TheService) -> Response:
    """Return a picture as `ID.png`, `ID.jpg` or `ID.webp`; it is saved under the name that it has in the gallery."""
    picture, suffix = name.partition(".")[0], PurePosixPath(name).suffix.lower() or ".png"
    row = service.library.find(picture)
    saved = PurePosixPath(row.path).with_suffix(suffix).name
    headers = {**_FOR_EVER, "Content-Disposition": f'inline; filename="{saved}"'}
    if suffix == ".png":
        return _file(service.gallery.path(row), headers)
    return Response(await service.picture_bytes(picture, suffix), media_type=_TYPES[suffix], headers=headers)


@router.head("/thumbs/{name}", include_in_schema=False)
@router.get("/thumbs/{name}")
async def thumb(name: str, service: TheService) -> Response:
    """Return the small form of a picture."""
    path = await service.library.thumb(name.partition(".")[0])
    return _file(path, _FOR_EVER)


def _file(path: Path, headers: Mapping[str, str]) -> Response:
    try:  # Starlette takes one that is gone since it was found for a bug.
        return FileResponse(path, media_type=_TYPES[path.suffix], headers=headers, stat_result=path.stat())
    except FileNotFoundError:
        raise no_picture() from None


@router.post("/api/recipes")
async def recipe(asked: RecipeQuestion, service: TheService) -> Response:
    """Read a recipe that was pasted, of any program that is known here."""
    found = await asyncio.to_thread(read_question, asked)
    return answer(for_the_form(found, service.catalogue.upscalers()))


@router.post("/api/uploads", status_code=201)
async def upload(request: Request, service: TheService, client: Client) -> Response:
    """Keep a picture for orders that name it: the body is its file."""
    return answer(for_the_form(await service.upload(await request.body(), client), service.catalogue.upscalers()), 201)


class Kept(BaseModel):
    """Uploads that may still be there."""

    model_config = ConfigDict(extra="forbid")
    ids: Annotated[tuple[UploadId, ...], FailFast(), Field(max_length=512)]


@router.post("/api/uploads/find")
async def find_uploads(kept: Kept, request: Request, service: TheService) -> Response:
    """Return those of uploads that are still there, or are pictures of the gallery: the sender's."""
    visitor = visitor_of(request)
    await service.bring_back(kept.ids, visitor.client)
    found = service.library.sent(kept.ids, visitor.own_uploads)
    return JSONResponse([{"id": one, "width": width, "height": height} for one, (width, height) in found.items()])


@router.post("/api/pictures/{picture}/upload", status_code=201)
async def copy_picture(picture: str, service: TheService, client: Client) -> Response:
    """Keep a picture of the gallery for orders that name it."""
    return answer(await service.copy_picture(picture, client), 201)


async def made_of_upload(
    upload: UploadId,
    request: Request,
    service: TheService,
    preprocessor: Annotated[str, Query(max_length=100)],
    threshold_a: Threshold = -1,
    threshold_b: Threshold = -1,
) -> bytes:
    """Return what a picture that was sent leads by, as PNG.

    `preprocessor` is that of a control of an order, or `mask`: as A1111 reads masks, white where opaque, or bright.
    """
    if preprocessor not in (names := (NONE, _MASK, *PREPROCESSORS)):
        raise refused(f"preprocessor: there is no {preprocessor!r}; there are {', '.join(names)}")
    check_preprocessor(preprocessor)
    await require_uploads(request, [upload])
    data = await service.library.upload_bytes(upload)
    if preprocessor == _MASK:
        return await in_turn(lambda: png(a1111_mask(data)), request)
    asked = threshold_a, threshold_b
    return await in_turn(lambda: png(preprocessed(decode_image(data, "the upload"), preprocessor, asked)), request)


Made = Annotated[bytes, Depends(made_of_upload)]


@router.get("/api/uploads/{upload}/preprocessed")
async def preprocessed_upload(made: Made) -> Response:
    """Return what a picture that was sent leads by."""
    return Response(made, media_type="image/png")


@router.post("/api/uploads/{upload}/preprocessed", status_code=201)
async def keep_preprocessed(made: Made, service: TheService, client: Client) -> Response:
    """Keep what a picture that was sent leads by as another one."""
    return answer(await service.upload(made, client), 201)
