"""Bounds on who may ask, from where, and how much: a pure ASGI layer around the whole server.

A page of a stranger must not reach a server on loopback through the visitor's browser: neither by its own origin
(`Origin`), nor by a name that it lets point here (`Host`, "DNS rebinding"). Everything is checked before a byte of the
body is read, and comparisons of secrets take the same time whatever they find.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from h11 import LocalProtocolError
from starlette.requests import ClientDisconnect

from olivelike.serve.api.refusals import RequestRefusedError
from olivelike.serve.turns import CLIENT

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FREE: Final = frozenset({"/healthz", "/readyz"})
"""Paths that anybody may ask for."""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]\\]+)(:\d{1,5})?", re.IGNORECASE)
_TOKENS: Final = re.compile(r"[\w\-, ]{1,500}")
_MOST_HEADERS: Final = 100
_MOST_HEADER_BYTES: Final = 32 << 10
_BODY_WAIT: Final = 60.0
"""Seconds until the next part of a body."""
_LINK_SECONDS: Final = 3600
_HEADERS: Final = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
    b"content-security-policy": (
        b"default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'"
    ),
}
"""Policy of every answer that does not say otherwise."""


@dataclass(frozen=True)
class GuardRules:
    """Visitors, origins and amounts that the operator allows."""

    host: str = "127.0.0.1"
    """Address that the server is bound to."""
    allow_hosts: frozenset[str] = frozenset()
    """Further names that it is reached by; `*` for any."""
    allow_origins: frozenset[str] = frozenset()
    """Origins of pages that may use it, such as `https://example.com`; `*` for any."""
    api_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by the names of those who have them."""
    basic: Mapping[str, str] = field(default_factory=dict)
    """Passwords by user."""
    body_limit: int = 64 << 20
    """Bytes of a request's body."""


@dataclass(frozen=True)
class Visitor:
    """Sender of a request."""

    client: str
    """Name of the key or the user; without any, the address."""
    secret: bytes | None
    """Signs links to files; `None` where none need be."""
    alone: bool = False
    """Whether no other key or user is known."""

    @property
    def own(self) -> str | None:
        """Client whose jobs alone it sees, ends and moves; `None` where no keys are wanted."""
        return None if self.secret is None else self.client

    @property
    def own_uploads(self) -> str | None:
        """Client whose uploads alone it may use; `None` where nobody else could have sent one."""
        return None if self.alone else self.own

    def sees(self, client: str) -> bool:
        """Tell whether it sees the jobs of a client."""
        return self.own in (None, client)

    def may_delete(self, maker: str | None) -> bool:
        """Tell whether it may delete a picture of a maker, or of one that is not known."""
        return self.own in (None, maker) or self.alone

    def link(self, path: str) -> str:
        """Return a path that needs no key for an hour: what a chat shows is fetched by who has none."""
        if self.secret is None:
            return path
        until = str(int(time.time()) + _LINK_SECONDS)
        return f"{path}?until={until}&signature={_signature(self.secret, path, until)}"


def visitor_of(request: HTTPConnection) -> Visitor:
    """Return who sent a request that the guards let through."""
    visitor: Visitor = request.state.visitor
    return visitor


def client_of(request: HTTPConnection) -> str:
    """Return the name under which a request's jobs wait in the queue."""
    return visitor_of(request).client


class Guards:
    """ASGI middleware that lets requests through as the rules say, and puts safe headers on every answer."""

    def __init__(self, app: ASGIApp, rules: GuardRules) -> None:
        self._app = app
        self._rules = rules
        self._secret = secrets.token_bytes(32)
        self._clients = {**rules.basic, **rules.api_keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            headers = _headers(scope)
            _check_headers(scope, self._rules.body_limit)
            host = self._check_host(headers.get("host", ""))
            answer.headers.update(self._check_origin(headers.get("origin"), host))
            if _is_preflight(scope, headers):
                await _answer_preflight(headers, answer.send)
                return
            visitor = self._visitor(scope, headers)
            scope.setdefault("state", {}).update(visitor=visitor, client=visitor.client)
            CLIENT.set(visitor.client)
            body = _Body(receive, self._rules.body_limit)
            answer.body = body
            await self._app(scope, body.receive, answer.send)
        except RequestRefusedError as refused:
            answer.headers[b"connection"] = b"close"
            await _refuse(scope, refused, receive, answer.send_now)
        except ClientDisconnect:  # In the middle of its body.
            pass
        except LocalProtocolError:  # uvicorn has told it already that it speaks no HTTP, and closes the connection.
            while (await receive())["type"] != "http.disconnect":
                pass
        if answer.body is not None and answer.body.refused is not None and not answer.begun:
            answer.headers[b"connection"] = b"close"
            await _refuse(scope, answer.body.refused, receive, answer.send_now)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a socket on that may be opened; what its messages may be is bounded where they are read."""
        try:
            headers = _headers(scope)
            _check_headers(scope, self._rules.body_limit)
            self._check_origin(headers.get("origin"), self._check_host(headers.get("host", "")))
            visitor = self._visitor(scope, headers)
        except RequestRefusedError as refused:
            await _refuse(scope, refused, receive, send)
            return
        scope.setdefault("state", {}).update(visitor=visitor, client=visitor.client)
        await self._app(scope, receive, send)

    def _check_host(self, written: str) -> str:
        match = _HOST.fullmatch(written)
        name = match[1].lower().rstrip(".") if match else ""
        if name and (name in self._rules.allow_hosts or "*" in self._rules.allow_hosts or self._is_here(name)):
            return written.lower()
        raise RequestRefusedError(
            421,
            "wrong_host",
            f"this server is not reached as {written[:100]!r}; start it with --allow-host for that name",
        )

    def _is_here(self, name: str) -> bool:
        """Tell a name that only this machine answers to; an address is no name that a stranger could let point here."""
        bound = self._rules.host.lower().strip("[]")
        address = _address(name)
        if address is None:
            return name == "localhost" or name.endswith(".localhost") or name == bound
        return address.is_loopback or name.strip("[]") == bound or not is_loopback(bound)

    def _check_origin(self, origin: str | None, host: str) -> dict[bytes, bytes]:
        """Return the headers that let the page of an allowed origin read the answer."""
        if origin is None:
            return {}
        try:
            parts = urlsplit(origin.lower())
            known = parts.scheme in ("http", "https")
            same = known and _with_port(parts.netloc, parts.scheme) == _with_port(host, parts.scheme)
        except ValueError:
            same = False
        if same:
            return {}
        allowed = self._rules.allow_origins
        if "*" not in allowed and origin.lower() not in allowed:
            raise RequestRefusedError(
                403, "wrong_origin", f"pages of {origin[:100]!r} may not use this server; start it with --allow-origin"
            )
        return {
            b"access-control-allow-origin": origin.encode("latin-1"),
            b"vary": b"Origin",
            b"cross-origin-resource-policy": b"cross-origin",
        }

    def _visitor(self, scope: Scope, headers: Mapping[str, str]) -> Visitor:
        address = (scope.get("client") or ("unknown", 0))[0]
        if not self._clients:
            return Visitor(address, None)
        name = self._named(headers.get("authorization", ""))
        if name is not None:
            return Visitor(name, self._secret, len(self._clients) == 1)
        if scope["path"] in _FREE or self._is_signed(scope):
            return Visitor(address, self._secret)
        raise RequestRefusedError(
            401,
            "unauthorized",
            "this server wants a key: send it as `Authorization: Bearer KEY`, or as Basic with its name",
            headers={"WWW-Authenticate": 'Basic realm="olivelike", charset="UTF-8"'},
        )

    def _named(self, written: str) -> str | None:
        """Return whose key or password is sent."""
        scheme, _, sent = written.partition(" ")
        found = None
        if scheme.lower() == "bearer":
            for name, key in self._rules.api_keys.items():
                found = name if _same(sent.strip(), key) else found
        elif scheme.lower() == "basic":
            try:
                user, _, password = base64.b64decode(sent, validate=True).decode().partition(":")
            except ValueError:
                return None
            for name, key in self._clients.items():
                found = name if _same(f"{user}:{password}", f"{name}:{key}") else found
        return found

    def _is_signed(self, scope: Scope) -> bool:
        if scope.get("method") not in ("GET", "HEAD") or not scope["path"].startswith("/files/"):
            return False
        query = parse_qs(scope["query_string"].decode("latin-1"))
        until, signature = query.get("until", [""])[0], query.get("signature", [""])[0]
        valid = _same(signature, _signature(self._secret, scope["path"], until))
        return valid and time.time() < int(until)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches what is bound to a host."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


class _Body:
    """A request's body, as far as it may go."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit
        self._whole = False
        self.refused: RequestRefusedError | None = None

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        if self.refused is not None:
            return {"type": "http.disconnect"}
        try:
            async with asyncio.timeout(_BODY_WAIT):
                message = await self._receive()
        except TimeoutError:
            self.refused = RequestRefusedError(408, "too_slow", "the request's body did not come")
            return {"type": "http.disconnect"}
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                self.refused = RequestRefusedError(
                    413, "too_large", "the request's body is larger than this server reads"
                )
                return {"type": "http.disconnect"}
            self._whole = not message.get("more_body", False)
        return message


class _Answer:
    """The answer on its way, with the headers that all have."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: dict[bytes, bytes] = {}
        self.begun = False
        self.body: _Body | None = None

    async def send(self, message: Message) -> None:
        """Send what the application says, unless its request's body was refused before it said anything."""
        if not self.begun and self.body is not None and self.body.refused is not None:
            return
        await self.send_now(message)

    async def send_now(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            given = [(name.lower(), value) for name, value in message.get("headers", ())]
            names = {name for name, _ in given} | self.headers.keys()
            more = [(name, value) for name, value in _HEADERS.items() if name not in names]
            message = {**message, "headers": [*given, *more, *self.headers.items()]}
        await self._send(message)


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers that are looked at here; one that is sent twice says two things, and is refused."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found and key in ("host", "origin", "authorization", "content-length"):
            raise RequestRefusedError(400, "invalid", f"the header {key} is sent twice")
        found[key] = value.decode("latin-1")
    return found


def _check_headers(scope: Scope, body_limit: int) -> None:
    pairs = scope["headers"]
    if len(pairs) > _MOST_HEADERS or sum(len(name) + len(value) for name, value in pairs) > _MOST_HEADER_BYTES:
        raise RequestRefusedError(431, "too_many_headers", "the request's headers are more than this server reads")
    names = {name.lower() for name, _ in pairs}
    if {b"content-length", b"transfer-encoding"} <= names:  # A proxy in front may take the other one for true.
        raise RequestRefusedError(400, "invalid", "Content-Length and Transfer-Encoding are both sent; send one")
    length = next((value for name, value in pairs if name.lower() == b"content-length"), b"0")
    if not re.fullmatch(rb"\d{1,18}", length):
        raise RequestRefusedError(400, "invalid", "Content-Length is no number")
    if int(length) > body_limit:
        raise RequestRefusedError(413, "too_large", f"the request's body may have {body_limit:,} bytes")


def _is_preflight(scope: Scope, headers: Mapping[str, str]) -> bool:
    return scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


async def _answer_preflight(headers: Mapping[str, str], send: Send) -> None:
    asked = headers.get("access-control-request-headers", "")
    allowed = [
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", asked.encode("latin-1") if _TOKENS.fullmatch(asked) else b"Authorization"),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": allowed})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, refused: RequestRefusedError, receive: Receive, send: Send) -> None:
    await refused.answer(scope["path"])(scope, receive, send)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _with_port(netloc: str, scheme: str) -> str:
    return netloc if re.search(r":\d+$", netloc) else f"{netloc}:{443 if scheme == 'https' else 80}"


def _same(sent: str, secret: str) -> bool:
    """Compare in a time that tells nothing, not even the secret's length."""
    return hmac.compare_digest(sha256(sent.encode()).digest(), sha256(secret.encode()).digest())


def _signature(secret: bytes, path: str, until: str) -> str:
    return hmac.new(secret, f"{path}\n{until}".encode(), "sha256").hexdigest()
