"""The page and its files: those that the package has, by their names."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from olivelike._files import file_identity
from olivelike.serve.api.refusals import RequestRefusedError
from olivelike.serve.form import declared
from olivelike.serve.languages import COOKIE, document_in, language_of, words_module
from olivelike.serve.marked_texts import module_in
from olivelike.serve.sent_code import as_sent

_FOLDER: Final = Path(str(files("olivelike.data").joinpath("serve")))
_NAME: Final = re.compile(r"[a-z_]+\.[a-z]+")
router = APIRouter(include_in_schema=False)
_TYPES: Final = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml", "json": "application/json", "png": "image/png", "webmanifest": "application/manifest+json",
}  # fmt: skip
_DOCUMENT: Final = "index.html"
_IN_LANGUAGES: Final = frozenset({"html", "js"})
"""Kinds of files that are sent in the language of who asks."""
_KEPT: Final = "max-age=31536000, immutable"
_PROCESS: Final = secrets.token_hex(8)


@router.head("/")
@router.get("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return _file(request, _DOCUMENT)


@router.head("/page/{name}")
@router.get("/page/{name}")
async def page_file(name: str, request: Request) -> Response:
    """Return a file of the page."""
    return _file(request, name)


@router.head("/page/{version}/{name}")
@router.get("/page/{version}/{name}")
async def versioned_file(version: str, name: str, request: Request) -> Response:
    """Return a file of the page, which browsers keep if it is of the version that the page names now."""
    return _file(request, name, version)


def _file(request: Request, name: str, version: str | None = None) -> Response:
    data, kind = None, name.rpartition(".")[2]
    language = language_of(request.cookies.get(COOKIE), request.headers.get("Accept-Language"))
    headers = {"Cache-Control": "no-cache", "Vary": "Cookie, Accept-Language"}
    if kind in _IN_LANGUAGES:
        data = _in_language(name, language)
    elif kind in _TYPES:
        del headers["Vary"]
        data = _on_disk(name)
        if data is not None and kind == "css":
            data = as_sent(data.decode(), kind).encode()
    if version is not None and version == version_in(language):
        headers = {"Cache-Control": _KEPT}
    if data is None:
        raise RequestRefusedError(404, "not_found", "the page has no such file")
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    headers["ETag"] = tag
    if tag in request.headers.get("If-None-Match", ""):  # Also behind W/, as proxies that compress have it.
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=_TYPES[kind], headers=headers)


def _in_language(name: str, language: str) -> bytes | None:
    match name:
        case "words.js":
            return words_module(language, {}).encode()
        case "declared.js":  # Fields of a request and of a record.
            return declared(language).encode()
    data = _on_disk(name)
    if data is None:
        return None
    text = data.decode()
    if name == _DOCUMENT:
        return document_in(language, text).replace("/page/", f"/page/{version_in(language)}/").encode()
    return module_in(language, as_sent(text)).encode()


def version_in(language: str) -> str:
    """Return what names the page's files as this process sends them now in a language: another after any change.

    Texts and code are those that the process has in memory, which the disk may have newer ones of.
    """
    with os.scandir(_FOLDER) as entries:
        files_now = sorted((one.name, file_identity(one.stat())) for one in entries)
    return hashlib.sha256(repr((_PROCESS, language, files_now)).encode()).hexdigest()[:12]


def _on_disk(name: str) -> bytes | None:
    """Return a file of the folder of that very name; nothing where there is none."""
    try:
        return _FOLDER.joinpath(name).read_bytes() if _NAME.fullmatch(name) else None
    except FileNotFoundError:
        return None
