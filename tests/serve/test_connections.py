"""Connections that never become requests end, and their number is bounded."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from olivelike.serve import listen
from olivelike.serve.listen import listening, make_server
from olivelike.serve.settings import ServeSettings

REQUEST = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def talk(monkeypatch):
    """Run a conversation with a server that waits 0.3 s for a header and has three connections at most."""
    monkeypatch.setattr(listen, "_HEADER_SECONDS", 0.3)
    monkeypatch.setattr(listen, "_MOST_CONNECTIONS", 3)
    app = FastAPI()

    @app.get("/slow")
    async def slow():
        await asyncio.sleep(0.5)
        return "done"

    def talk(conversation):
        async def run():
            listener, ready = listening(ServeSettings(port=0)), asyncio.Event()
            server, writers = make_server(app, ready.set), []
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await ready.wait()

            async def connect():
                reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
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


def test_more_connections_than_may_be_are_closed_at_once(talk):
    async def conversation(connect):
        held = [await connect() for _ in range(3)]
        reader, _ = await connect()
        try:
            more = await reader.read()
        except ConnectionResetError:
            more = b""
        held[0][1].write(REQUEST + b"\r\n")
        return more, await held[0][0].readuntil(b'"done"')

    more, first = talk(conversation)
    assert more == b""
    assert first.startswith(b"HTTP/1.1 200 ")
