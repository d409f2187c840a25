"""One client's many requests leave others their turn."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from olivelike.serve.api.guards import GuardRules, Guards
from olivelike.serve.api.images import in_turn
from olivelike.serve.turns import CLIENT, Turns


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
