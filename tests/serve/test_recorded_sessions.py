"""Sessions of programs that draw with ComfyUI, recorded as those were run, answered here as they need it.

`tests/fixtures/recorded_sessions/*.json` has a file for each program, with its version: what it sent, which answer it
got, by the types of its values, and what its socket was told. `$model`, `$prompt`, `$client1`, `$sent1` and `$picture1`
stand for names that are others each time. Pictures are drawn smaller than they were.
"""

from __future__ import annotations

import io
import json
import re
import struct
import uuid
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from PIL import Image
from websockets.sync.client import connect

from tests.serve.conftest import wait_until
from tests.serve.test_native_jobs import png

RECORDED = sorted((Path(__file__).parent.parent / "fixtures" / "recorded_sessions").glob("*.json"))
_TYPES = {"string": str, "number": (int, float), "boolean": bool, "object": dict}
_SIDES = {"width": 32, "height": 32}


class Session:
    """What a program would know, and its socket."""

    def __init__(self, server, client, stack):
        self.server, self.client, self._stack = server, client, stack
        self.names = {"$model": next(iter(server.service.catalogue.folders()))}
        self.pictures, self.socket = [], None
        self.posted = self.late = False

    def named(self, value):
        """Return a recorded value with the names of now."""
        if isinstance(value, dict):
            return {self.named(key): self.named(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.named(inner) for inner in value]
        if not isinstance(value, str):
            return value
        for name in re.findall(r"\$(?:client\d+|sent\d+|prompt)", value):
            self.names.setdefault(name, str(uuid.uuid4()))
        return re.sub(r"\$[a-z]+\d*", lambda match: self.names[match[0]], value)

    def open(self, path):
        if self.socket is not None:
            self.socket.close()
        self.late = self.posted  # Some listen when it may have been drawn already.
        self.socket = self._stack.enter_context(connect(f"{self.server.url.replace('http', 'ws')}{self.named(path)}"))

    def send(self, step):
        method, _, path = step["send"].partition(" ")
        if path.endswith("/prompt") and "json" in step:
            self.names["$prompt"], self.posted = str(uuid.uuid4()), True
        parts = urlsplit(path)
        query = urlencode([(key, self.named(value)) for key, value in parse_qsl(parts.query, keep_blank_values=True)])
        sent = {"headers": {**step.get("headers", {})}}
        if "json" in step:
            sent["content"] = json.dumps(small(self.named(step["json"])))
        elif "multipart" in step.get("headers", {}).get("content-type", ""):
            del sent["headers"]["content-type"]  # It has the mark between parts.
            sent["files"] = {"image": (self.named("$sent1"), png((48, 32)), "image/png")}
        elif "body" in step:
            sent["content"] = png((48, 32))
        url = f"{self.named(parts.path)}?{query}".removesuffix("?")
        answer = self.client.request(method, url, **sent)
        if "$prompt" in step.get("answer", ()):  # Some ask until it is there.
            wait_until(lambda: self.names["$prompt"] in self.client.get(url).json())
            answer = self.client.get(url)
        assert answer.status_code == step["status"], (step, answer.text)
        self.check(step, answer)

    def check(self, step, answer):
        match step["answer"]:
            case "picture":
                Image.open(io.BytesIO(answer.content)).load()
            case "text" | "nothing":
                assert bool(answer.content) == (step["answer"] == "text")
            case recorded:
                found = answer.json()
                if isinstance(found, dict) and "prompt_id" in found:
                    self.names["$prompt"] = found["prompt_id"]
                if "$prompt" in recorded:
                    for output in found[self.names["$prompt"]]["outputs"].values():
                        self.take(output)
                fits(self.named(recorded), found, step["send"])

    def take(self, output):
        """Learn the names of pictures from what an output is told to have made."""
        for image in output.get("images", ()):
            name = (image.get("id") or image.get("filename")).removesuffix(".png")
            if name not in self.pictures:
                self.pictures.append(name)
                self.names[f"$picture{len(self.pictures)}"] = name

    def hear(self, recorded):
        """Read what is told until the prompt has ended, and compare it with what was told."""
        told, prompt = [], self.names.get("$prompt")
        while self.late or "executing None" in recorded:
            message = self.socket.recv(timeout=30)
            if isinstance(message, bytes):
                told.append({1: "JPEG", 2: "PNG"}[struct.unpack(">II", message[:8])[1]])
                continue
            kind, data = (found := json.loads(message))["type"], found["data"]
            if kind == "executed":
                self.take(data["output"])
            named = kind in ("executing", "executed")
            told += [f"{kind} {data['node']}" if named else kind] if kind != "status" else []
            ended = told[-1:] == ["executing None"] and data["prompt_id"] == prompt
            if ended or (self.late and kind == "status" and data["status"]["exec_info"]["queue_remaining"] == 0):
                break
        self.posted = False
        if self.late:  # It may have been drawn before anybody listened.
            path = f"/history/{prompt}"
            wait_until(lambda: prompt in self.client.get(path).json())
            for output in self.client.get(path).json()[prompt]["outputs"].values():
                self.take(output)
        else:
            assert [kind for kind in told if kind != "progress"] == [kind for kind in recorded if kind != "progress"]


def small(body):
    """Return a body whose graph draws and starts from pictures of 32x32."""
    for node in body["prompt"].values() if isinstance(body, dict) and isinstance(body.get("prompt"), dict) else ():
        if node["class_type"] in ("EmptyLatentImage", "ImageScale"):
            node["inputs"] |= _SIDES
    return body


def fits(recorded, found, place):
    """Check that an answer has all that the recorded one had, of the same types; of lists, that is of their first."""
    if isinstance(recorded, dict):
        assert isinstance(found, dict), place
        for key, inner in recorded.items():
            assert key in found, (place, key)
            fits(inner, found[key], f"{place}.{key}")
    elif isinstance(recorded, list):
        assert isinstance(found, list), place
        if recorded and found:
            fits(recorded[0], found[0], f"{place}[0]")
    elif recorded != "null":
        assert isinstance(found, _TYPES[recorded]), (place, found)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_comfyuis_programs_ask_is_answered_as_they_read_it(path, server, client):
    with ExitStack() as stack:
        session = Session(server, client, stack)
        for step in json.loads(path.read_text())["steps"]:
            if "socket" in step:
                session.open(step["socket"])
            elif "told" in step:
                session.hear(step["told"])
            else:
                session.send(step)


@pytest.mark.slow
def test_a_client_of_pypi_draws_and_asks_for_all_that_it_knows(server, tmp_path):
    simplified = pytest.importorskip("comfy_api_simplified", reason="`pip install comfy_api_simplified` has it run")
    api = simplified.ComfyApiWrapper(server.url)
    steps = json.loads(RECORDED[0].with_name("comfy_api_simplified.json").read_text())["steps"]
    session = Session(server, None, None)
    graph = next(small(session.named(step["json"]))["prompt"] for step in steps if step["send"] == "POST /prompt")
    for number in (3, 60):
        graph["3"]["inputs"]["steps"] = number
        (made,) = api.queue_and_wait_images(simplified.ComfyWorkflowWrapper(graph), "Save Image").values()
        assert Image.open(io.BytesIO(made)).size == (32, 32)
    (tmp_path / "cat.png").write_bytes(png((32, 32)))
    assert api.upload_image(tmp_path / "cat.png")["name"] == "cat.png"
    assert api.get_queue()["queue_running"] == api.get_embeddings() == []
    assert "KSampler" in api.get_object_info()
    api.interrupt()
