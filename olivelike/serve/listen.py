"""The server process: uvicorn around the application."""

from __future__ import annotations

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
    """Return a socket at the address of the settings. Raises `UsageError` if it can't be had."""
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
