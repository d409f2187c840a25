"""Connections that never become requests end, and their number is bounded."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from olivelike.errors import UsageError
from olivelike.serve import listen
from olivelike.serve.api.guards import GuardRules, Guards
from olivelike.serve.listen import listening, make_server
from olivelike.serve.settings import ServeSettings

REQUEST = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def talk(monkeypatch):
    """Run a conversation with a server of short patience that has five connections at most, three of an address."""
    monkeypatch.setattr(listen, "_HEADER_SECONDS", 0.3)
    monkeypatch.setattr(listen, "_MOST_CONNECTIONS", 5)
    monkeypatch.setattr(listen, "_MOST_OF_ADDRESS", 3)
    app = FastAPI()

    @app.get("/slow")
    async def slow():
        await asyncio.sleep(0.5)
        return "done"

    def talk(conversation, proxies=(), *, guarded=False):
        async def run():
            if guarded:
                app.add_middleware(Guards, rules=GuardRules())
            listener, ready = listening(ServeSettings(port=0)), asyncio.Event()
            server, writers = make_server(app, ready.set, proxies), []
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await ready.wait()

            async def connect(address="127.0.0.1"):
                reader, writer = await asyncio.open_connection(*listener.getsockname()[:2], local_addr=(address, 0))
                writers.append(writer)
                return reader, writer

            try:
                return await asyncio.wait_for(conversation(connect), 10)
            finally:
                for writer in writers:
                    writer.close()
                await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
                server.should_exit = True
                await serving
                listener.close()

        return asyncio.run(run())

    return talk


@pytest.mark.parametrize("sent", [b"", REQUEST])
def test_a_connection_without_a_whole_header_is_closed(talk, sent):
    async def conversation(connect):
        reader, writer = await connect()
        writer.write(sent)
        return await reader.read()

    assert talk(conversation) == b""


def test_a_whole_request_has_its_time_and_the_next_one_half_sent_has_not(talk):
    async def conversation(connect):
        reader, writer = await connect()
        writer.write(REQUEST + b"\r\n")
        first = await reader.readuntil(b'"done"')
        writer.write(REQUEST)
        return first, await reader.read()

    first, rest = talk(conversation)
    assert first.startswith(b"HTTP/1.1 200 ")
    assert rest == b""


async def answer(reader, writer):
    """Return what is read to a request; nothing if the connection is closed."""
    try:
        writer.write(REQUEST + b"\r\n")
        return await reader.readuntil(b'"done"')
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""


def test_more_connections_than_an_address_may_have_are_closed_and_leave_room_for_others(talk):
    async def conversation(connect):
        held = [await connect() for _ in range(3)]
        more, other = await connect(), await connect("127.0.0.2")
        answers = [await answer(*one) for one in (more, other)]
        held[1][1].close()
        await held[1][1].wait_closed()
        return [*answers, await answer(*await connect())]

    more, other, again = talk(conversation)
    assert more == b""
    assert other.startswith(b"HTTP/1.1 200 ")
    assert again.startswith(b"HTTP/1.1 200 ")


def test_a_proxy_may_have_all_connections_and_no_more(talk):
    async def conversation(connect):
        held = [await connect() for _ in range(5)]
        return [await answer(*one) for one in (await connect(), held[4])]

    more, last = talk(conversation, ["127.0.0.1"])
    assert more == b""
    assert last.startswith(b"HTTP/1.1 200 ")


def test_a_network_of_ipv6_is_one_address():
    assert listen._origin_of("2001:db8::1") == listen._origin_of("2001:db8::ffff:2") != listen._origin_of("2001:db9::1")
    assert listen._origin_of("::ffff:10.0.0.2") == listen._origin_of("10.0.0.2") == "10.0.0.2"
    with pytest.raises(UsageError, match="--proxy studio.lan: is no address"):
        listening(ServeSettings(port=0, proxies=("studio.lan",)))


@pytest.mark.parametrize(
    "head", [b"X: a\r\n b\r\n", b"X: a\r\n\tb\r\n", b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"]
)
def test_a_header_that_a_proxy_may_read_otherwise_is_refused(talk, head):
    async def conversation(connect):
        reader, writer = await connect()
        writer.write(REQUEST + b"\r\n" + REQUEST + head + b"\r\n")  # The second is looked at as the first was.
        return await reader.read()

    first, _, second = talk(conversation, guarded=True).partition(b'"done"')
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 400 ")


@pytest.mark.slow
def test_two_thousand_idle_connections_of_an_address_leave_room_for_another(talk, monkeypatch):
    monkeypatch.setattr(listen, "_MOST_CONNECTIONS", 512)
    monkeypatch.setattr(listen, "_MOST_OF_ADDRESS", 128)
    monkeypatch.setattr(listen, "_HEADER_SECONDS", 30)

    async def conversation(connect):
        for _ in range(2000):
            await connect()
        return await answer(*await connect("127.0.0.2"))

    assert talk(conversation).startswith(b"HTTP/1.1 200 ")
