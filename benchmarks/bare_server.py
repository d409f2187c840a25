"""The least server in front of a pipeline, as one writes it in an evening: the peer of what `olivelike serve` adds.

uvicorn, Starlette and pybase64 are those of `olivelike serve`. It checks, plans, queues, counts and shows nothing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pybase64
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

Answer = Callable[[bytes], None]


def start(draw: Callable[[dict[str, Any], Answer], None]) -> int:
    """Listen in a thread, and return the port.

    Args:
        draw: takes an order, and later calls back, from any thread, with the bytes of a picture's file.
    """

    async def answer(request: Request) -> Response:
        loop = asyncio.get_running_loop()
        drawn: asyncio.Future[bytes] = loop.create_future()
        draw(json.loads(await request.body()), lambda data: loop.call_soon_threadsafe(drawn.set_result, data) and None)
        text = b'{"images":["' + pybase64.b64encode(await drawn) + b'"]}'
        return Response(text, media_type="application/json")

    listening = socket.create_server(("127.0.0.1", 0))
    application = Starlette(routes=[Route("/", answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_keep_alive=3600))
    threading.Thread(target=server.run, args=([listening],), daemon=True).start()
    return int(listening.getsockname()[1])
