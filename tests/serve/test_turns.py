"""One client's many requests leave others their turn."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading

import httpx
import pytest
from PIL import Image

from olivelike.serve.api import comfyui_state
from olivelike.serve.api.guards import GuardRules, Guards
from olivelike.serve.api.images import in_turn
from olivelike.serve.turns import CLIENT, Turns
from tests.fixtures.wait_until import wait_until


def test_who_asks_for_much_has_one_place_in_the_queue():
    order: list[str] = []

    async def ask(client: str) -> None:
        CLIENT.set(client)
        await in_turn(lambda: order.append(client))

    async def run() -> None:
        await asyncio.gather(*(ask("many") for _ in range(5)), ask("one"), ask("other"))

    asyncio.run(run())
    assert order == ["many", "one", "other", "many", "many", "many", "many"]


def test_a_turn_that_is_given_up_is_the_next_ones():
    async def run() -> None:
        turns, held = Turns(), asyncio.Event()

        async def hold() -> None:
            async with turns.turn():
                held.set()
                await asyncio.sleep(100)

        holding = asyncio.create_task(hold())
        await held.wait()
        holding.cancel()
        async with asyncio.timeout(10), turns.turn():
            pass
        assert not turns._own, "nobody is remembered"

    asyncio.run(run())


@pytest.mark.parametrize(("key", "client"), [("key-of-anna", "anna"), ("key-of-bert", "bert")])
def test_a_turn_is_that_of_the_key_of_a_request(key, client):
    seen: list[str] = []

    async def application(_scope, _receive, _send):
        seen.append(CLIENT.get())

    layer = Guards(application, GuardRules(api_keys={"anna": "key-of-anna", "bert": "key-of-bert"}))
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {key}".encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "query_string": b"",
    }
    contextvars.copy_context().run(asyncio.run, layer(scope, None, None))
    assert seen == [client]


def test_nothing_is_made_for_who_has_left_before_its_turn(server, client, monkeypatch):
    picture = server.draw()["pictures"][0]["id"]
    made, waiting, begun, free = [], [], threading.Event(), threading.Event()

    async def wait_in_turn(work, request):
        waiting.append(request)
        return await in_turn(work, request)

    def hold() -> None:
        begun.set()
        free.wait(60)

    monkeypatch.setattr(comfyui_state, "in_turn", wait_in_turn)
    monkeypatch.setattr(comfyui_state, "upright", lambda *_: made.append(1) or Image.new("RGB", (8, 8)))
    holding = asyncio.run_coroutine_threadsafe(in_turn(hold), server.loop)
    assert begun.wait(60)
    address = httpx.URL(server.url)
    asked = f"GET /view?filename={picture}_16x16.png HTTP/1.1\r\nHost: {address.host}\r\n\r\n".encode()
    for number in range(3):
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(asked)
            wait_until(lambda many=number: len(waiting) > many)
    free.set()
    holding.result(60)
    assert client.get(f"/view?filename={picture}_16x16.png").status_code == 200
    assert made == [1], "it waited behind those"
