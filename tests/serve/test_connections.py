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
from tests.fixtures.set_forward import SetForward

REQUEST = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def talk(monkeypatch):
    """Run a conversation with a server that has five connections at most, three of an address."""
    monkeypatch.setattr(listen, "_MOST_CONNECTIONS", 5)
    monkeypatch.setattr(listen, "_MOST_OF_ADDRESS", 3)
    app, answered = FastAPI(), []

    @app.get("/slow")
    async def slow():
        answered.append(1)
        await app.state.may_answer.wait()
        return "done"

    def talk(conversation, proxies=(), *, guarded=False):
        async def run():
            if guarded:
                app.add_middleware(Guards, rules=GuardRules())
            listener, ready = listening(ServeSettings(port=0)), asyncio.Event()
            server, writers = make_server(app, ready.set, proxies), []
            app.state.may_answer = asyncio.Event()
            app.state.may_answer.set()
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await ready.wait()

            async def connect(address="127.0.0.1"):
                reader, writer = await asyncio.open_connection(*listener.getsockname()[:2], local_addr=(address, 0))
                writers.append(writer)
                return reader, writer

            connect.open = server.server_state.connections
            connect.app, connect.answered = app, answered
            try:
                return await asyncio.wait_for(conversation(connect), 10 * listen._HEADER_SECONDS)
            finally:
                for writer in writers:
                    writer.close()
                await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
                server.should_exit = True
                await serving
                listener.close()

        with asyncio.Runner(loop_factory=SetForward) as runner:
            return runner.run(run())

    return talk


async def until(true):
    """Let the server go on until something is so."""
    while not true():
        await asyncio.sleep(0)


async def rest_after_a_while(reader):
    """Return what is read until the connection is closed, for which the clock is set forward."""
    loop = asyncio.get_running_loop()
    loop.ahead += listen._HEADER_SECONDS + 1
    return await reader.read()


@pytest.mark.parametrize("sent", [b"", REQUEST])
def test_a_connection_without_a_whole_header_is_closed(talk, sent):
    async def conversation(connect):
        reader, writer = await connect()
        writer.write(sent)
        await until(lambda: connect.open)
        return await rest_after_a_while(reader)

    assert talk(conversation) == b""


def test_a_whole_request_has_its_time_and_the_next_one_half_sent_has_not(talk):
    async def conversation(connect):
        reader, writer = await connect()
        connect.app.state.may_answer.clear()
        writer.write(REQUEST + b"\r\n")
        await until(lambda: connect.answered)
        asyncio.get_running_loop().ahead += listen._HEADER_SECONDS + 1
        await asyncio.sleep(0.01)
        connect.app.state.may_answer.set()
        first = await reader.readuntil(b'"done"')
        writer.write(REQUEST)
        (served,) = connect.open
        await until(lambda: served.conn.trailing_data[0])  # Else its end would be that of one that asks nothing.
        return first, await rest_after_a_while(reader)

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
        await until(lambda: len(connect.open) == 3)
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
