"""Pictures that clients send cost the server bounded time and room."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import pytest

from olivelike.errors import SessionError, StoreError, UsageError
from olivelike.serve.gallery import upload_reader, uploads
from olivelike.serve.gallery.upload_reader import UploadReader
from tests.serve.test_native_jobs import png


@pytest.fixture
def reader(tmp_path):
    reader = UploadReader(tmp_path, tmp_path / "log")
    yield reader
    reader.close()


def test_a_picture_that_takes_too_long_or_ends_its_process_is_refused_and_the_next_is_read(reader, monkeypatch):
    async def run():
        first = await reader.add(png())
        assert (first.width, first.height) == (32, 32)
        stuck = reader._child.pid
        os.kill(stuck, signal.SIGSTOP)
        monkeypatch.setattr(upload_reader, "_SECONDS", 0.2)
        with pytest.raises(UsageError, match="takes more than 0.2 s to read"):
            await reader.add(png())
        monkeypatch.undo()
        assert (await reader.add(png())).id == first.id
        killed = reader._child.pid
        os.kill(killed, signal.SIGSTOP)
        sent, send = asyncio.Event(), reader._child.send
        monkeypatch.setattr(reader._child, "send", lambda message: (send(message), sent.set()))
        reading = asyncio.create_task(reader.add(png()))
        await sent.wait()
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(UsageError, match="too much memory"):
            await reading
        assert (await reader.add(png())).id == first.id
        assert len({stuck, killed, reader._child.pid}) == 3
        with pytest.raises(UsageError, match="no picture that can be read"):
            await reader.add(b"no picture")

    asyncio.run(run())


def test_a_picture_is_read_where_the_servers_working_folder_is_gone(reader, tmp_path, monkeypatch):
    async def run():
        first = await reader.add(png())
        gone.rmdir()
        assert await reader.add(png()) == first
        reader.close()
        assert await reader.add(png()) == first

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    asyncio.run(run())


def test_why_the_process_ended_is_said_as_it_is(reader):
    assert str(reader._why(-signal.SIGSEGV)).endswith("was killed by SIGSEGV; save the picture as PNG or JPEG")
    bug = reader._why(1)
    assert (type(bug), str(bug).partition(": ")[2]) == (
        SessionError, "the process that reads it ended with status 1; log says why"
    )  # fmt: skip


def test_a_process_that_does_not_start_is_said_at_once(reader, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StoreError, match="does not start; log says why"):
        asyncio.run(reader.add(png()))


def test_the_oldest_upload_that_no_job_needs_goes_when_there_are_too_many_bytes(tmp_path, monkeypatch):
    now = time.time()
    for age, name in enumerate(["new", "middle", "needed", "old"]):
        (tmp_path / f"{name}.png").write_bytes(bytes(100))
        os.utime(tmp_path / f"{name}.png", (now - age, now - age))
    monkeypatch.setattr(uploads, "KEPT_BYTES", 300)
    uploads.prune_uploads(tmp_path, {"needed"}, {})
    assert {path.stem for path in tmp_path.iterdir()} == {"new", "middle", "needed"}
    monkeypatch.setattr(uploads, "KEPT_BYTES", 100)
    with pytest.raises(StoreError, match="jobs that wait need 1 others"):
        uploads.require_room(tmp_path, {"needed"})
    uploads.prune_uploads(tmp_path, {"needed"}, {})
    assert {path.stem for path in tmp_path.iterdir()} == {"needed"}


def test_uploads_of_one_client_are_in_the_place_of_its_own(tmp_path, monkeypatch):
    now, senders = time.time(), {}
    for age, (client, name) in enumerate([*(("many", f"many{number}") for number in range(6)), ("one", "single")]):
        (tmp_path / f"{name}.png").write_bytes(bytes(10))
        os.utime(tmp_path / f"{name}.png", (now - age, now - age))
        senders[name] = client
    monkeypatch.setattr(uploads, "_KEPT", 4)
    gone = uploads.prune_uploads(tmp_path, {"many5"}, senders)
    assert {path.stem for path in tmp_path.iterdir()} == {"many0", "many1", "many2", "many5", "single"}
    assert gone == ["many3", "many4"]
    monkeypatch.setattr(uploads, "KEPT_BYTES", 35)
    uploads.prune_uploads(tmp_path, {"many5"}, senders)
    assert {path.stem for path in tmp_path.iterdir()} == {"many0", "many5", "single"}
