"""The server process: uvicorn around the application."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.serve.settings import ServeSettings

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

_MOST_HEADER_BYTES: Final = 32 << 10
"""That wait to be whole; httptools, the other parser, has no bound."""
_ORIGIN: Final = re.compile(r"[a-zA-Z][\w+.-]*://[^/?#\s]+")
_NAME: Final = re.compile(r"[^/:\s]+|\[?[0-9a-fA-F:.]+\]?")
_GRACE: Final = 1
"""Seconds that requests have to end once the server does."""


def serve(settings: ServeSettings, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until a signal ends it.

    Raises `UsageError` if the address can't be had, and what `create_app` says.

    Args:
        on_ready: is called with the URL once requests are answered.
    """
    from olivelike.serve.app import create_app

    with listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        make_server(create_app(settings), lambda: on_ready(url)).run(sockets=[listener])


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
    for name in settings.allow_hosts:
        if name != "*" and not _NAME.fullmatch(name):
            raise UsageError(f"--allow-host {name}: is no name; write it without scheme, port and path: studio.lan")


def make_server(app: FastAPI, on_ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
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

    config = uvicorn.Config(
        app, http="h11", h11_max_incomplete_event_size=_MOST_HEADER_BYTES, ws="none", proxy_headers=False,
        server_header=False, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE, lifespan="on",
    )  # fmt: skip
    return Server(config)
