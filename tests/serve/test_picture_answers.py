"""Answers whose pictures are sent piece by piece: the same JSON as in one piece, of the length that was said."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from olivelike.serve.api import images
from olivelike.serve.api.images import PictureAnswer

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
