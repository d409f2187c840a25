"""Servers as processes of their own, killed in the middle and started again on the same gallery."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import httpx
import psutil
import pytest
from PIL import Image

from olivelike.cli.app import run_command_line
from olivelike.runtime.pictures import read_picture
from tests.serve.conftest import SMALL, wait_until


@contextmanager
def process(folder, gallery, *options):
    """Start a server; yield its process and a client. What is left at the end is killed."""
    command = [sys.executable, "-m", "olivelike", "serve", str(folder), "--gallery", str(gallery), "--port", "0"]
    started = subprocess.Popen(
        [*command, "--threads", "1", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = started.stdout.readline()
        assert "is ready" in line, started.stderr.read()
        with httpx.Client(base_url=line.split()[0], timeout=30) as client:
            yield started, client
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def submit(client, **order):
    answer = client.post("/api/jobs", json={**SMALL, **order})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def job(client, one):
    return client.get(f"/api/jobs/{one}").json()


def children_of(server):
    return psutil.Process(server.pid).children(recursive=True)


def is_gone(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # Between the two questions.
        return True


def gone(processes):
    return all(map(is_gone, processes))


def check_files(gallery, *, was_killed=False):
    """Check that every file of a gallery is whole, and every index."""
    for path in sorted(gallery.glob("20*/*")):
        if was_killed and path.name.endswith(".tmp"):
            continue  # Without a name yet; the next start removes it.
        assert not path.name.endswith(".tmp")
        assert read_picture(path).own or path.name.endswith("-sheet.png")
        with Image.open(path) as image:
            image.load()
    for name in ("jobs", "pictures"):
        with sqlite3.connect(gallery / ".index" / f"{name}.sqlite") as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()


def has_drawn(client, one, pictures):
    found = job(client, one)
    return found["step"] > 0 and len(found["pictures"]) >= pictures


def kill_in_the_middle(folder, gallery, times, source, before=None):
    """Kill a server so often while it draws, then let the last one finish what was asked of all of them.

    Args:
        folder: what is drawn with.
        gallery: where its pictures are.
        times: how often.
        source: of random numbers.
        before: seeds of a job by its id, which an earlier server has left.
    """
    before, asked = before or {}, []
    for number in range(times):
        with process(folder, gallery) as (server, client):
            asked.append(submit(client, seed=100 * number, num_images=4, steps=60))
            asked.append(submit(client, seed=100 * number + 50))
            drawn = source.randrange(4)
            wait_until(partial(has_drawn, client, asked[-2], drawn), 60)
            time.sleep(source.random() * 0.1)
            children = children_of(server)
            server.kill()
            server.wait()
            wait_until(partial(gone, children))
        check_files(gallery, was_killed=True)
    with process(folder, gallery) as (server, client):
        wait_until(lambda: all(job(client, one)["state"] == "done" for one in (*before, *asked)), 120)
        for one, seeds in before.items():
            assert [picture["seed"] for picture in job(client, one)["pictures"]] == seeds
        for number, one in enumerate(asked):
            first = 100 * (number // 2)
            seeds = [first, first + 1, first + 2, first + 3] if number % 2 == 0 else [first + 50]
            assert [picture["seed"] for picture in job(client, one)["pictures"]] == seeds
        listed = client.get("/api/pictures?limit=500").json()["pictures"]
        server.send_signal(signal.SIGINT)
        server.wait(30)
    check_files(gallery)
    assert len(listed) == len(list(gallery.glob("20*/*"))) == 5 * times + sum(map(len, before.values()))


@pytest.mark.slow
def test_a_server_killed_in_mid_job_20_times_loses_nothing(little, tmp_path):
    kill_in_the_middle(little, tmp_path / "gallery", 20, random.Random(2))


def test_jobs_that_ctrl_c_or_a_kill_ended_in_the_middle_go_on_after_the_restart(little, tmp_path):
    with process(little, tmp_path / "gallery") as (server, client):
        one = submit(client, steps=80, num_images=2)
        with client.stream("GET", f"/api/jobs/{one}/events") as stream:
            lines = stream.iter_lines()
            assert any('"step"' in line for line in lines)
            children = children_of(server)
            server.send_signal(signal.SIGINT)
            assert not any('"failed"' in line for line in lines), "the stream ends, the job does not"
            server.wait(30)
        assert gone(children)
        errors = server.stderr.read()
        assert "Traceback" not in errors
    kill_in_the_middle(little, tmp_path / "gallery", 1, random.Random(1), {one: [7, 8]})


def test_a_second_server_on_one_gallery_and_an_address_that_is_taken_are_refused(server, little, tmp_path, capsys):
    port = server.url.rpartition(":")[2]
    for options, status, message in (
        ((little, "--gallery", server.settings.gallery, "--port", "0"), 2, "another server has this gallery"),
        ((little, "--gallery", tmp_path / "other", "--port", port), 2, "can't be listened on: Address already in use"),
        ((tmp_path, "--gallery", tmp_path / "other"), 3, "has no model_index.json"),
        (("--gallery", tmp_path / "other"), 2, "nothing is served"),
    ):
        found = run_command_line(["serve", *map(str, options)])
        said = capsys.readouterr().err
        assert (found, message in said, "Traceback" in said) == (status, True, False), said
