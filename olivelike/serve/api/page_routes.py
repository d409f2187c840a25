"""The page and its files: those that the package has, by their names."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request, Response

from olivelike.serve.api.refusals import RequestRefusedError
from olivelike.serve.form import form
from olivelike.serve.languages import COOKIE, compact, language_of, words_module

router = APIRouter(include_in_schema=False)
_TYPES: Final = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml", "json": "application/json", "png": "image/png", "webmanifest": "application/manifest+json",
}  # fmt: skip

_FORM: Final = "declared.js"
"""The module that is made of the fields of a request and of a record."""
_WORDS: Final = "words.js"
"""The module that is made of the table of texts, in the language of who asks."""


@router.get("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return _file(request, "index.html")


@router.get("/page/{name}")
async def page_file(name: str, request: Request) -> Response:
    """Return a file of the page."""
    return _file(request, name)


def _file(request: Request, name: str) -> Response:
    known = {one.name: one for one in files("olivelike.data").joinpath("serve").iterdir()}
    headers = {"Cache-Control": "no-cache"}
    if name == _WORDS:
        language = language_of(request.cookies.get(COOKIE), request.headers.get("Accept-Language"))
        data = words_module(language).encode()
        headers["Vary"] = "Cookie, Accept-Language"
    elif name == _FORM:
        data = f"export const FORM = {compact(form())};\n".encode()
    elif name not in known or name.rpartition(".")[2] not in _TYPES:
        raise RequestRefusedError(404, "not_found", "the page has no such file")
    else:
        data = known[name].read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    headers["ETag"] = tag
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
