"""Pictures in base64: answers are sent piece by piece, the same JSON as in one, and requests are read as ever."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct

import pytest
from fastapi import FastAPI

from olivelike.errors import UsageError
from olivelike.serve.api import images
from olivelike.serve.api.images import PictureAnswer, from_base64
from olivelike.serve.listen import listening, make_server
from olivelike.serve.settings import ServeSettings

SIZES = (0, 1, 2, 3, images._PIECE - 1, images._PIECE, images._PIECE + 1, 2 * images._PIECE + 5)


def sent(answer):
    """Return what a client gets: headers, and the parts of the body."""
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(answer({"type": "http"}, None, send))
    begin, *parts = messages
    assert begin["type"] == "http.response.start" and begin["status"] == 200
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    return dict(begin["headers"]), [part["body"] for part in parts]


def content(size):
    return bytes(number * 31 % 251 for number in range(size))


@pytest.mark.parametrize("sizes", [(), *((size,) for size in SIZES), SIZES])
def test_pictures_are_strings_of_the_json(sizes):
    pictures = [content(size) for size in sizes]
    value = {"images": pictures, "one": {"in": pictures[:1]}, "info": 'a "word", ü\n'}
    headers, parts = sent(PictureAnswer(value))
    body = b"".join(parts)
    assert headers == {b"content-length": str(len(body)).encode(), b"content-type": b"application/json"}
    texts = [base64.b64encode(one).decode() for one in pictures]
    assert json.loads(body) == {"images": texts, "one": {"in": texts[:1]}, "info": 'a "word", ü\n'}


def test_no_piece_is_a_whole_large_picture():
    _, parts = sent(PictureAnswer({"images": [content(5 * images._PIECE)]}))
    assert len(parts) == 6
    assert max(map(len, parts)) < images._PIECE * 4 / 3 + 100


def test_what_is_no_json_is_refused():
    with pytest.raises(TypeError, match="complex"):
        PictureAnswer({"images": [1j]})


@pytest.fixture
def answered():
    """Run clients of a server with a large answer, one after the other; it ends before those that have not left."""
    app = FastAPI()

    @app.get("/")
    async def large():
        return PictureAnswer({"images": [bytes(200 * images._PIECE)]})

    def ask(address):
        client = socket.create_connection(address, timeout=10)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in client.recv(100)
        return client

    async def run(number, leave):
        listener, ready = listening(ServeSettings(port=0)), asyncio.Event()
        server = make_server(app, ready.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await ready.wait()
        clients = [await asyncio.to_thread(lambda: leave(ask(listener.getsockname()))) for _ in range(number)]
        server.should_exit = True
        await serving
        for client in filter(None, clients):
            client.close()
        while server.server_state.connections:
            await asyncio.sleep(0.01)
        listener.close()

    return lambda number, leave: asyncio.run(asyncio.wait_for(run(number, leave), 30))


def test_a_client_that_leaves_ends_its_answer_without_a_word(answered, caplog):
    def leave(client):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    answered(20, leave)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_client_that_reads_no_more_is_no_bug_when_the_server_ends(answered, capsys):
    answered(1, lambda client: client)
    said = capsys.readouterr().err
    assert "1 running task" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("aGVsbG8=", b"hello"), ("data:image/png;base64,aGVsbG8=", b"hello"), ("", b""), ("aGVs\r\nbG8=\n", b"hello"),
        (" aGVsbG8= ", b"hello"), ("aGVs,bG8=", b"hello"), ("aGVsbG8=aGVsbG8=", b"hello"), ("aGVsbG8=E", b"hello"),
        ("aGVsbA==\nEND", b"hell"), ("aGVsbG8==", b"hello"),
    ],
)  # fmt: skip
def test_base64_is_read_up_to_its_padding_without_what_is_none(text, data):
    assert from_base64(text, "image") == data == base64.b64decode(text.removeprefix("data:image/png;base64,"))


@pytest.mark.parametrize("text", ["aGVsbG8", "a", "aGVsbG8=é", "é", "\ud800", "aGVsbG8=\ufeff"])
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(UsageError, match="image is no base64"):
        from_base64(text, "image")


def test_many_small_pictures_leave_others_their_turn():
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send(_message: object) -> None:
        """Take all at once, as a client does that is quick or gone."""

    async def answer() -> None:
        beside = asyncio.ensure_future(others())
        await PictureAnswer({"images": [bytes(30)] * 40})({}, None, send)
        beside.cancel()

    asyncio.run(answer())
    assert turns >= 39 // images._TURN
