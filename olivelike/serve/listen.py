"""The server process: uvicorn around the application."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.serve.settings import ServeSettings

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

_MOST_HEADER_BYTES: Final = 32 << 10
"""Bytes of a header that wait until it is whole; httptools, the other parser, has no bound."""
_MOST_MESSAGE_BYTES: Final = 64 << 10
"""Bytes of a socket's message; those of clients say what a program is, and nothing is done with them."""
_HEADER_SECONDS: Final = 30.0
"""Seconds that a client has for a whole header, from its connection or from the first byte of its next request on."""
_MOST_CONNECTIONS: Final = 512
"""Open at once, of the 1,024 descriptors that a process usually has."""
_MOST_OF_ADDRESS: Final = 128
"""Connections of one address among these; a browser opens 6, and a proxy may have all."""
_FOLDED: Final = re.compile(rb"\n[ \t]")
"""A header that goes on in the next line, which RFC 9112 has servers refuse."""
_ORIGIN: Final = re.compile(r"[a-zA-Z][\w+.-]*://[^/?#\s]+")
_NAME: Final = re.compile(r"[^/:\s]+|\[?[0-9a-fA-F:.]+\]?")
_IDLE_SECONDS: Final = 75
"""Seconds that a connection is kept for its client's next request: longer than proxies do, whose 60 are the usual."""
_GRACE: Final = 1
"""Seconds that requests have to end once the server does."""


def serve(settings: ServeSettings, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until a signal ends it.

    Raises `UsageError` if the address can't be had, and what `create_app` says.

    Args:
        on_ready: is called with the URL once requests are answered.
    """
    from olivelike.serve.application import create_app

    with listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        make_server(create_app(settings), lambda: on_ready(url), settings.proxies).run(sockets=[listener])


def listening(settings: ServeSettings) -> socket.socket:
    """Return a socket at the address of the settings.

    Raises `UsageError` if it can't be had, is open to everybody unasked, or what is allowed can't match.
    """
    _check_access(settings)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off, which holds answers back for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"{settings.host}:{settings.port} can't be listened on: {error.strerror or error}; name another with "
            "--host and --port"
        ) from error
    return listener


def _check_access(settings: ServeSettings) -> None:
    from olivelike.serve.api.guards import is_loopback

    if not (is_loopback(settings.host) or settings.api_keys or settings.basic or settings.no_auth):
        raise UsageError(
            f"--host {settings.host} is reached by others, who could all use the server: give --api-key or --basic, or "
            "--no-auth if that is meant"
        )
    if twice := sorted(settings.api_keys.keys() & settings.basic.keys()):
        raise UsageError(f"{twice[0]!r} has a key and a password; give it one of them")
    for origin in settings.allow_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise UsageError(f"--allow-origin {origin}: is no origin; write scheme and name alone, https://example.com")
    for address in settings.proxies:
        if _origin_of(address) is None:
            raise UsageError(f"--proxy {address}: is no address; write it as 10.0.0.2")
    for name in settings.allow_hosts:
        if name != "*" and not _NAME.fullmatch(name):
            raise UsageError(f"--allow-host {name}: is no name; write it without scheme, port and path: studio.lan")


def _origin_of(address: str) -> str | None:
    """Return by what connections are counted: an IPv4 address, or the half of an IPv6 one that a network has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _protocols(proxies: Sequence[str]) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """Return uvicorn's HTTP, where connections that never become requests end, and its sockets; both are bounded.

    None of an address may keep those of others out, but for the proxies, which speak for many.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    counts: Counter[str] = Counter()

    def leave(origin: str) -> None:
        counts[origin] -= 1
        if not counts[origin]:
            del counts[origin]

    unbounded = {_origin_of(address) for address in proxies}

    class Protocol(H11Protocol):
        _end: asyncio.TimerHandle | None = None
        _origin = ""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._origin = _origin_of(self.client[0] if self.client else "") or ""
            counts[self._origin] += 1
            full = counts[self._origin] > _MOST_OF_ADDRESS and self._origin not in unbounded
            if full or len(self.connections) > _MOST_CONNECTIONS:
                transport.abort()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def handle_events(self) -> None:
            if self.conn.their_state is h11.IDLE:  # What waits begins with a header; in it h11 takes folded lines.
                head, _, _ = self.conn.trailing_data[0].replace(b"\r\n", b"\n").partition(b"\n\n")
                if _FOLDED.search(head):
                    self.send_400_response("A header is folded into several lines; send it on one.")
                    return
            super().handle_events()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            leave(self._origin)
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._end is None:
                self._end = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

        def _stop(self) -> None:
            if self._end is not None:
                self._end.cancel()
                self._end = None

    class Socket(WebSocketsSansIOProtocol):
        # It takes the place of the connection that asked for it, which hears no more of its end.
        def connection_lost(self, exc: Exception | None) -> None:
            leave(_origin_of(self.client[0] if self.client else "") or "")
            super().connection_lost(exc)

        async def send(self, message: Any) -> None:
            await super().send(message)
            # A refusal is an answer; uvicorn would log for each that there was none.
            self.handshake_complete = self.handshake_complete or message["type"] == "websocket.http.response.body"

    return Protocol, Socket


def make_server(
    app: FastAPI, on_ready: Callable[[], None] = lambda: None, proxies: Sequence[str] = ()
) -> uvicorn.Server:
    """Return a server that ends streams of events before it waits for requests to end."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_ready()

        async def shutdown(self, sockets: Any = None) -> None:
            service = getattr(app.state, "service", None)
            if service is not None:
                service.feed.close()
            await super().shutdown(sockets)

    http, socket = _protocols(proxies)
    config = uvicorn.Config(
        app, http=http, h11_max_incomplete_event_size=_MOST_HEADER_BYTES, ws=socket, ws_max_size=_MOST_MESSAGE_BYTES,
        ws_per_message_deflate=False, proxy_headers=False,
        server_header=False, log_level="warning", access_log=False, timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE, lifespan="on",
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut_off_answer)
    return Server(config)


def _is_no_cut_off_answer(record: logging.LogRecord) -> bool:
    """Tell what is to be logged: not that a client that reads slowly has no whole answer when the server ends."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
