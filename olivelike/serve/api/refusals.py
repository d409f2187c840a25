"""Refusals in the words of the API that was asked: OpenAI's, A1111's, or the server's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, get_type_hints

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from olivelike._untrusted import Json, parse_json
from olivelike.errors import (
    MissingError,
    OlivelikeError,
    SafetyError,
    SessionError,
    SourceError,
    StoreError,
    UsageError,
)
from olivelike.runtime.pipeline.request import PICTURE_FIELDS
from olivelike.serve.gallery.database import is_full
from olivelike.serve.views import JobEnded, QueueFull

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.responses import Response

_STATUSES: Final[tuple[tuple[type[OlivelikeError], int], ...]] = (
    (QueueFull, 429), (JobEnded, 409), (UsageError, 422), (SafetyError, 422), (SourceError, 404), (StoreError, 507),
    (SessionError, 503), (MissingError, 503), (OlivelikeError, 500),
)  # fmt: skip
"""The first that fits."""
_CODES: Final = {400: "invalid", 404: "not_found", 405: "not_allowed", 422: "invalid"}
_NO_ROUTE: Final = "there is no such route here; /docs lists those that there are"
_MOST_CHARACTERS: Final = 4000
"""Characters of a message; it may name what was asked for."""
_OPENAI: Final = {401: ("invalid_request_error", "invalid_api_key"), 429: ("rate_limit_error", "rate_limit_exceeded")}


class RequestRefusedError(Exception):
    """A request that is refused for what HTTP, or one API alone, says of it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take the HTTP status, a word for programs, a sentence for people, and the parameter that is wrong."""
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, headers

    def answer(self, path: str) -> Response:
        """Return the answer to a request for a path."""
        return refusal(path, self.status, self.code, str(self), param=self.param, headers=self.headers)


def refused(message: str) -> RequestRefusedError:
    """Return the refusal of a value."""
    return RequestRefusedError(422, "invalid", message)


def refusal(
    path: str,
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the answer that says no.

    Args:
        path: of the request; tells whose words are spoken.
        code: a word for programs.
        message: a sentence for people.
        param: name of the parameter that is wrong.
    """
    message = message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}…"
    message = message.encode("utf-8", "replace").decode()
    body: Json = {"error": {"code": code, "message": message}}
    if path.startswith("/v1/"):
        status = 400 if status == 422 else status
        kind, code = _OPENAI.get(status, ("invalid_request_error" if status < 500 else "server_error", code))
        body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    elif path.startswith("/sdapi/"):
        body = {"error": code, "detail": message, "body": "", "errors": message}
    return JSONResponse(body, status, dict(headers or {}))


def status_of(kind: type[OlivelikeError]) -> int:
    """Return the HTTP status of a kind of error."""
    return next(status for known, status in _STATUSES if issubclass(kind, known))


def add_handlers(app: FastAPI) -> None:
    """Let an application answer everything that is refused in the words of its path."""

    async def olivelike(request: Request, error: Exception) -> Response:
        assert isinstance(error, OlivelikeError)
        headers = {"Retry-After": str(error.seconds)} if isinstance(error, QueueFull) else None
        return refusal(request.url.path, status_of(type(error)), error.word, str(error), headers=headers)

    async def full(request: Request, error: Exception) -> Response:
        if not is_full(error):
            raise error
        words = f"nothing more can be written down here ({getattr(error, 'strerror', None) or error}); free some space"
        return refusal(request.url.path, status_of(StoreError), StoreError.word, words)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRefusedError)
        return error.answer(request.url.path)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        message, param = in_words(error.errors())
        if param is None and "json" not in request.headers.get("content-type", ""):
            message = "the body was not read as JSON: send it with Content-Type: application/json"
        return refusal(request.url.path, 422, "invalid", message, param=param)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "invalid" if error.status_code < 500 else "failed")
        message = _NO_ROUTE if (error.status_code, error.detail) == (404, "Not Found") else str(error.detail)
        return refusal(request.url.path, error.status_code, code, message, headers=error.headers)

    app.add_exception_handler(OlivelikeError, olivelike)
    app.add_exception_handler(OSError, full)
    app.add_exception_handler(sqlite3.OperationalError, full)
    app.add_exception_handler(RequestRefusedError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def in_words(errors: Iterable[Mapping[str, Any]], names: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Return what pydantic found as one sentence without the values, and the first place that is wrong.

    `names` has what fields are called where they come from.
    """
    called = names or {}
    found = [
        (".".join(called.get(str(part), str(part)) for part in error["loc"] if part != "body"), error)
        for error in errors
    ]
    said = ((place, _message(place, error)) for place, error in found[:10])
    text = "; ".join(f"{place}: {message}" if place else message for place, message in said)
    return text[:2000], next((place for place, _ in found if place), None)


def _message(place: str, error: Mapping[str, Any]) -> str:
    match error["type"], place:
        case "string_pattern_mismatch", _ if place.partition(".")[0] in PICTURE_FIELDS:
            return "give the `id` that POST /api/uploads answers with"
        case "extra_forbidden", "size":
            return "give `width` and `height`"
    return str(error["msg"]).removeprefix("Value error, ")


_MOST_VALUES: Final = 50_000
"""In a body; a prompt has up to 20,000 characters, all of which may be commas."""


class StrictRoute(APIRoute):
    """A route whose JSON has finite numbers, whole characters and bounded depth, as all that is read from strangers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with requests that read so."""
        original = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await original(StrictRequest.of(request))

        return handler


class StrictRequest(Request):
    """A request whose JSON is read so."""

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return a request as one of these; itself, if it is one."""
        return request if isinstance(request, cls) else cls(request.scope, request.receive)

    async def json(self) -> Any:
        """Return the body's value. Raises `HTTPException` if it is none that is read here."""
        body = await self.body()
        if body.count(b",") > _MOST_VALUES:  # Each wrong one would be told of, at some microseconds and bytes.
            raise HTTPException(413, f"the request's body has more than the {_MOST_VALUES:,} values that are read here")
        try:
            return parse_json(body)
        except ValueError as error:
            raise HTTPException(400, f"the request's body is no JSON that is read here: {error}") from None


class BodyRoute(StrictRoute):
    """A route whose endpoint takes the request and, second, its body, and returns the response.

    All else that FastAPI finds out of each request is left out.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; a body that is not of the form in JSON is for the usual one to refuse."""
        usual, endpoint = super().get_route_handler(), self.endpoint
        (form,) = (
            kind for kind in get_type_hints(endpoint).values() if isinstance(kind, type) and issubclass(kind, BaseModel)
        )

        async def handler(request: Request) -> Response:
            if request.headers.get("content-type") != "application/json":
                return await usual(request)
            strict = StrictRequest.of(request)
            try:
                asked = form.model_validate(await strict.json())
            except ValidationError:
                return await usual(strict)  # It has the body, which comes once.
            response: Response = await endpoint(strict, asked)
            return response

        return handler
