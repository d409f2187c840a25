"""A running server as a program sees it: its native API over HTTP, its refusals as our errors."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from typing import IO, Any, Final

from olivelike._untrusted import Json, one_line, parse_json
from olivelike.errors import MissingError, OlivelikeError, SourceError, UsageError, error_of

_SECONDS: Final = 60.0
_SILENCE: Final = 120.0
"""Seconds without an event or a sign of life after which a server is given up."""
_MOST_JSON: Final = 16 << 20
_MOST_PICTURE: Final = 256 << 20
_LONGEST: Final = 500
"""Letters of a server's message."""
_UNREACHABLE: Final = (OSError, http.client.HTTPException)
"""Errors of the standard library for a server that is not there, or breaks off."""


class BusyError(MissingError):
    """The server's queue is full."""


class GoneError(MissingError):
    """No server answers, or it breaks off."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Server:
    """The server at a URL.

    Raises `UsageError` if that is no URL of one.

    Args:
        url: such as `http://127.0.0.1:7860`; user and password in it are sent as Basic.
        api_key: sent as Bearer.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"--server {url!r} is no URL: {error}; write http://127.0.0.1:7860") from error
        if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment:
            raise UsageError(f"--server {url!r} is no URL of a server; write http://127.0.0.1:7860")
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{parts.scheme}://{shown}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
        """Without user and password."""
        self._headers = {"Accept": "application/json", "User-Agent": "olivelike"}
        if api_key:
            if not api_key.isascii() or not api_key.isprintable():
                raise UsageError("--api-key is no key: it has letters that no HTTP header can have")
            self._headers["Authorization"] = f"Bearer {api_key}"
        elif parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        # A proxy for the way out has no business with this machine.
        proxies = [urllib.request.ProxyHandler({})] if _is_here(host) else []
        self._opener = urllib.request.build_opener(_NoRedirects, *proxies)

    def get(self, path: str) -> Any:
        """Return what the server answers, as JSON."""
        return self._json("GET", path, None)

    def post(self, path: str, body: object = None, *, seconds: float = _SECONDS) -> Any:
        """Send JSON, and return the answer as JSON."""
        data = b"" if body is None else json.dumps(body).encode()
        return self._json("POST", path, data, "application/json", seconds)

    def upload(self, data: bytes) -> str:
        """Send a picture; return its id."""
        return str(self._json("POST", "/api/uploads", data, "application/octet-stream")["id"])

    def picture(self, picture: str) -> bytes:
        """Return a picture of the gallery as a PNG file."""
        with self._open("GET", f"/files/{_quoted(picture)}.png", None) as answer:
            return self._read(answer, _MOST_PICTURE)

    def events(self) -> Generator[Json]:
        """Return the events of all jobs until the server ends them; an empty one for each line that is none.

        The first comes when the server listens for us.
        """
        with self._open("GET", "/api/events", None, seconds=_SILENCE) as answer:
            while line := self._line(answer):
                # Of each event its line of data is enough: one line of JSON, which has the type in it.
                event = self._parsed(line[5:]) if line.startswith(b"data:") else {}
                if isinstance(event, dict):
                    yield event

    def _json(self, method: str, path: str, data: bytes | None, kind: str = "", seconds: float = _SECONDS) -> Any:
        with self._open(method, path, data, kind, seconds) as answer:
            return self._parsed(self._read(answer, _MOST_JSON))

    def _open(self, method: str, path: str, data: bytes | None, kind: str = "", seconds: float = _SECONDS) -> IO[bytes]:
        """Ask; raise the server's refusal as an error of ours."""
        headers = {**self._headers, **({"Content-Type": kind} if kind else {})}
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  (http or https)
        try:
            answer: IO[bytes] = self._opener.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except _UNREACHABLE as error:
            raise self._gone(error) from error
        return answer

    def _refusal(self, error: urllib.error.HTTPError) -> OlivelikeError:
        try:
            found = parse_json(error.read(_MOST_JSON))["error"]
            code, message = str(found["code"]), str(found["message"])
        except (*_UNREACHABLE, ValueError, TypeError, KeyError):
            code, message = "", f"{error.code} {error.reason}; is it `olivelike serve`?"
        return self.failure(code, message, error.code)

    def failure(self, code: str, message: str, status: int = 500) -> OlivelikeError:
        """Return what the server says that went wrong as an error of ours, by its word or by the status of HTTP."""
        text = f"{self.url}: {one_line(message[:_LONGEST])}"
        if status in {401, 403}:
            return UsageError(f"{text} (--api-key, $OLIVELIKE_API_KEY)")
        kind = {404: SourceError, 429: BusyError}.get(status, MissingError if status >= 500 else UsageError)
        named = error_of(code)
        return (named if named.word == code and status != 429 else kind)(text)

    def _gone(self, error: Exception) -> GoneError:
        why = getattr(error, "reason", None) or error or type(error).__name__
        return GoneError(
            f"no server answers at {self.url}: {one_line(str(why))}; start one there with `olivelike serve`"
        )

    def _read(self, answer: IO[bytes], most: int) -> bytes:
        try:
            data = answer.read(most + 1)
        except _UNREACHABLE as error:
            raise self._gone(error) from error
        if len(data) > most:
            raise MissingError(f"{self.url}: its answer has more than {most:,} bytes; is it `olivelike serve`?")
        return data

    def _line(self, answer: IO[bytes]) -> bytes:
        try:
            return answer.readline(_MOST_JSON)
        except _UNREACHABLE as error:
            raise self._gone(error) from error

    def _parsed(self, data: bytes) -> Any:
        try:
            return parse_json(data, halves=True)
        except ValueError as error:
            raise MissingError(f"{self.url}: its answer is no JSON: {error}; is it `olivelike serve`?") from error


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
