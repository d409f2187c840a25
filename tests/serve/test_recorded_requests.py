"""Requests as other people's programs send them, and what each of them reads from the answers.

`tests/fixtures/recorded_requests/*.json` has a file for each program: its requests in order, and `reads`, a place in
the answer with what the program takes it for. In requests `$title`, `$name` and `$picture` stand for what is here.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from PIL import Image

RECORDED = sorted((Path(__file__).parent.parent / "fixtures" / "recorded_requests").glob("*.json"))
_SIDES = re.compile(r"\d{3,4}x\d{3,4}")


def small(value):
    """Return a request with pictures of 32x32, which the little pipeline draws in no time."""
    if isinstance(value, dict):
        sides = {key: 32 for key in ("width", "height") if key in value}
        return {key: small(inner) for key, inner in value.items()} | sides
    return "32x32" if isinstance(value, str) and _SIDES.fullmatch(value) else value


def found_at(answer, place):
    """Return all that a place such as `data[*].url` or `info.json().seed` has; nothing if there is none."""
    values = [answer]
    for step in re.findall(r"json\(\)|\[\*\]|\[\d+\]|[^.\[\]]+", place):
        if step == "json()":
            values = [json.loads(value) for value in values]
        elif step == "[*]":
            values = [inner for value in values for inner in value]
        elif step.startswith("["):
            values = [value[int(step[1:-1])] for value in values if len(value) > int(step[1:-1])]
        else:
            values = [value[step] for value in values if step in value]
    return values


def require_picture(data):
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        assert image.size >= (32, 32)


def check(answer, place, wanted, client, headers):
    values = found_at(answer, place)
    if wanted == "absent":
        assert not values
        return
    assert values, place
    for value in values:
        match wanted:
            case "text":
                assert isinstance(value, str)
                assert value
            case "number":
                assert isinstance(value, (int, float))
            case "list":
                assert isinstance(value, list)
            case "JSON text":
                assert isinstance(json.loads(value), dict)
            case "base64 picture":
                assert not value.startswith("data:")
                require_picture(base64.b64decode(value, validate=True))
            case "link to a picture" | "link to a picture that needs no key":
                sent = {} if wanted.endswith("no key") else headers
                fetched = httpx.get(value, headers=sent, timeout=60)
                assert fetched.headers["content-type"].startswith("image/")
                require_picture(fetched.content)
            case {"length": length}:
                assert len(value) == length
            case {"is": expected}:
                assert value == expected
            case _:
                raise AssertionError(f"unknown kind {wanted}")


def send(request, headers):
    """Send a request byte by byte as it was written: httpx refuses `Basic ` with nothing behind it, others send it."""
    connection = http.client.HTTPConnection(request.url.host, request.url.port, timeout=600)
    with closing(connection):
        body = request.read()
        kind = {"Content-Type": request.headers["content-type"]} if body else {}
        connection.request(request.method, request.url.raw_path.decode(), body or None, {**headers, **kind})
        answer = connection.getresponse()
        return answer.status, answer.read()


def replay(path, client, resize):
    """Send a program's requests, and check what it reads."""
    model = client.get("/sdapi/v1/sd-models").json()[0]
    buffer = io.BytesIO()
    Image.new("RGB", (48, 32), "teal").save(buffer, "PNG")
    answers = []
    for exchange in map(resize, json.loads(path.read_text())["exchanges"]):
        body = exchange.get("json")
        if isinstance(body, dict):
            body = {**answers[body["$answer_of"]], **body} if "$answer_of" in body else body
            names = {"$title": model["title"], "$name": model["model_name"]}
            body = {key: names.get(value, value) if isinstance(value, str) else value for key, value in body.items()}
            body.pop("$answer_of", None)
        files = [(one["name"], (one["filename"], buffer.getvalue(), one["type"])) for one in exchange.get("files", ())]
        request = httpx.Request(
            exchange["method"], str(client.base_url) + exchange["path"], json=body, data=exchange.get("form"),
            files=files or None,
        )  # fmt: skip
        status, text = send(request, exchange["headers"])
        assert status == 200, (exchange["what"], text)
        answers.append(json.loads(text))
        for place, wanted in exchange["reads"].items():
            check(answers[-1], place, wanted, client, exchange["headers"])


def sized(expected):
    """Return what a program reads of a picture of 32x32."""
    exchange = small(expected)
    reads = {p: {"is": 32} if re.search(r"(width|height)$", p) else w for p, w in expected["reads"].items()}
    return {**exchange, "path": expected["path"], "reads": reads}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_people_use_works_unchanged(path, client):
    replay(path, client, sized)
