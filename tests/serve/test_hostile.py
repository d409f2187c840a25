"""Requests that mean harm: none finds a bug, and none touches a file that is not the gallery's."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from hostile_requests import Fuzzer, Request, ask, pictures

import olivelike

EXPLOITED = Path("/tmp/olivelike-was-here")
STREAMS = ("/api/events",)
"""They never end, and have no input."""
AUDITED = """
import json, os, sys

log = os.open(os.environ["AUDIT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
changing = {"os." + name for name in "mkdir rename remove rmdir link symlink truncate chmod utime".split()}
seen = set()

def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path, mode, flags = arguments
        kind = "write" if (mode and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & writing) else "read"
    elif event in changing:
        path, kind = arguments[0], "write"
    elif event in ("os.listdir", "os.scandir"):
        path, kind = arguments[0], "read"
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        path, kind = arguments[0], "run"
    elif event == "pickle.find_class":
        path, kind = ".".join(arguments), "unpickle"
    else:
        return
    if path is None or isinstance(path, int):
        return
    said = kind, os.path.abspath(os.fsdecode(path)) if kind in ("read", "write") else str(path)
    if said not in seen:
        seen.add(said)
        os.write(log, json.dumps(said).encode() + b"\\n")

sys.addaudithook(hook)
"""


def tree(folder, without):
    """Return what is in a folder, by content."""
    found = {}
    for path in folder.rglob("*"):
        if not path.is_relative_to(without):
            found[path] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def lay_decoys(folder):
    """Put files where `../` would lead to."""
    (folder / "secret.txt").write_text("a, b")
    (folder / "secret.png").write_bytes(pictures_of_harm()["good"])
    (folder / "secret.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "secret").mkdir()


def pictures_of_harm():
    import random

    return pictures(random.Random(0))


def test_a_sample_of_hostile_requests_finds_no_bug(serve, tmp_path, monkeypatch, caplog):
    around = tmp_path / "around"
    around.mkdir()
    monkeypatch.chdir(around)  # Nobody else writes there.
    server = serve(gallery=around / "gallery")
    lay_decoys(around)
    before = tree(around, server.settings.gallery)
    port = httpx.URL(server.url).port
    with server.client() as client:
        described = client.get("/openapi.json").json()
    fuzzer = Fuzzer(described, port, seed=1, model=server.service.current_model, skip=STREAMS)
    with caplog.at_level(logging.ERROR):
        statuses = {request: ask(port, request) for request in fuzzer.requests(150)}
    bad = {request.what: request.data[:300] for request, status in statuses.items() if status and status >= 500}
    assert not bad
    assert [record.getMessage() for record in caplog.records] == []
    assert Counter(statuses.values())[200] > 10, "some are to be answered"
    assert tree(around, server.settings.gallery) == before
    assert not EXPLOITED.exists()
    assert server.draw()["state"] == "done"


HARM = pictures_of_harm()


@pytest.mark.parametrize("name", [name for name in HARM if name not in ("good", "alpha", "gif")])
@pytest.mark.parametrize("way", ["/api/uploads", "/v1/images/edits", "/sdapi/v1/img2img", "/sdapi/v1/png-info"])
def test_files_that_are_no_pictures_are_refused(client, name, way):
    data = HARM[name]
    if way == "/api/uploads":
        answer = client.post(way, content=data)
    elif way == "/v1/images/edits":
        answer = client.post(way, data={"prompt": "a", "num_inference_steps": "1"}, files={"image": ("a.png", data)})
    else:
        text = base64.b64encode(data).decode()
        answer = client.post(way, json={"image": text, "init_images": [text], "steps": 2, "width": 16, "height": 16})
    fine = {"text bomb", "deep record", "lying record", "tiff", *(["many scans"] if way.endswith("png-info") else [])}
    assert answer.status_code in ((200, 201, 400, 404, 422) if name in fine else (400, 413, 422))
    assert not EXPLOITED.exists()


def test_a_stream_without_end_is_cut_at_the_limit(serve, server):
    port, limit = httpx.URL(server.url).port, server.settings.max_body
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        head = f"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        part = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        answer = b""
        with suppress(ConnectionError):
            while sent < 1 << 30:
                connection.sendall(part)
                sent += 1 << 20
        with suppress(ConnectionError):
            answer = connection.recv(100)
    assert limit - (8 << 20) < sent < limit + (32 << 20)
    assert not answer or answer.startswith(b"HTTP/1.1 413")


@pytest.fixture
def audited(little, tmp_path):
    """Run the server as people do, with a hook in it and in the process that draws that writes down what they open."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(AUDITED)
    (tmp_path / "at").mkdir()
    (tmp_path / "loras").mkdir()
    (tmp_path / "wildcards").mkdir()
    (tmp_path / "wildcards" / "colour.txt").write_text("red\nblue\n")
    lay_decoys(tmp_path)
    gallery, log, errors = tmp_path / "at" / "gallery", tmp_path / "opened.jsonl", tmp_path / "stderr.txt"
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path / 'hook'}:{Path(olivelike.__file__).parent.parent}", "AUDIT_LOG": str(log),  # noqa: E501
    }  # fmt: skip
    command = [
        sys.executable, "-m", "olivelike", "serve", str(little), "--port", "0", "--gallery", str(gallery), "--max-size", "64",  # noqa: E501
        "--max-steps", "20", "--max-images", "4", "--time-limit", "20", "--max-body", "4MB",
        "--lora-dir", str(tmp_path / "loras"), "--wildcard-dir", str(tmp_path / "wildcards"),
    ]  # fmt: skip
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=tmp_path / "at", env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, int(re.search(r":(\d+)", line)[1]), tmp_path, gallery, little
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.mark.slow
def test_5000_hostile_requests_find_no_bug_and_touch_no_file_outside_the_gallery(audited, request):
    process, port, around, gallery, model = audited
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    request.addfinalizer(client.close)
    drawn = {"prompt": "a", "steps": 4, "width": 16, "height": 16}
    good = base64.b64encode(HARM["good"]).decode()
    painted = {**drawn, "init_images": [good], "mask": good}
    # What libraries write when they are first imported, such as torch's folder below /tmp, no request asks for.
    for path, body in (("txt2img", drawn), ("img2img", painted)):
        assert client.post(f"/sdapi/v1/{path}", json=body).status_code == 200
    before = len((around / "opened.jsonl").read_text().splitlines())
    fuzzer = Fuzzer(
        client.get("/openapi.json").json(),
        port,
        seed=int(os.environ.get("HOSTILE_SEED", "7")),
        model=model.name,
        skip=STREAMS,
    )
    files = {*tree(around, gallery), around / "opened.jsonl", around / "stderr.txt"}
    statuses: Counter[int | None] = Counter()
    drawn_by: Counter[str] = Counter()
    bad: list[Request] = []
    for asked in fuzzer.requests(5000):
        status = ask(port, asked)
        statuses[status] += 1
        drawn_by[asked.what.partition(" ")[2].partition(" ")[0]] += status in (200, 202)
        if status is not None and status >= 500:
            bad.append(asked)
    assert statuses[200] > 1000, statuses
    assert all(drawn_by[path] for path in ("/sdapi/v1/txt2img", "/v1/images/generations", "/api/jobs")), drawn_by
    assert not bad, [(one.what, one.data[:500]) for one in bad[:10]]
    assert process.poll() is None
    said = (around / "stderr.txt").read_text()
    assert "Traceback" not in said, said[-3000:]
    assert client.post("/sdapi/v1/txt2img", json=drawn).status_code == 200
    assert {*tree(around, gallery)} == files
    assert not EXPLOITED.exists()
    opened = [json.loads(line) for line in (around / "opened.jsonl").read_text().splitlines()[before:]]
    written = {path for kind, path in opened if kind == "write" and not Path(path).is_relative_to(gallery)}
    assert written <= {"/dev/null"}
    libraries = [Path(olivelike.__file__).parent.parent, sys.prefix, sys.base_prefix, *(p for p in sys.path if p)]
    allowed = [
        gallery,
        model,
        around / "loras",
        around / "wildcards",
        around / "hook",
        "/proc",
        "/sys",
        "/usr",
        *libraries,
    ]
    read = {path for kind, path in opened if kind == "read" and not any(map(Path(path).is_relative_to, allowed))}
    assert read <= {str(around / "at"), "/etc/os-release"}  # The folder it was started in, and a library's.
    assert not [
        what for kind, what in opened if kind == "unpickle" and what.startswith(("builtins.exec", "posix.", "os."))
    ]


@pytest.mark.slow
def test_a_gigabyte_takes_no_gigabyte(audited):
    process, port, *_ = audited
    import psutil

    before = psutil.Process(process.pid).memory_info().rss
    part = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    for head in ("Transfer-Encoding: chunked", f"Content-Length: {1 << 30}"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(f"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{head}\r\n\r\n".encode())
            try:
                for _ in range(1024):
                    connection.sendall(part)
            except ConnectionError:
                continue
            raise AssertionError("it was read to the end")
    assert psutil.Process(process.pid).memory_info().rss - before < 200 << 20
