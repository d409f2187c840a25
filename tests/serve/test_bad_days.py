"""What goes wrong with folders, memory, disks and the process that draws: one job fails, and the server goes on."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import resource
import shutil
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from PIL import Image

from olivelike.serve.gallery import upload_reader
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import SMALL, running, wait_until

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.fixture(scope="module")
def rough(base_settings, little, tmp_path_factory):
    """A server of two folders, of which one at a time stays open, with LoRAs and narrow limits."""
    from olivelike.testing.lora_files import make_lora

    root = tmp_path_factory.mktemp("rough")
    folders = [shutil.copytree(little, root / "models" / name) for name in ("first", "second")]
    loras = root / "loras"
    loras.mkdir()
    make_lora(loras / "style.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
    make_lora(loras / "other.safetensors", "kohya", base=little_checkpoint("xl"), alpha=64.0)
    size = sum(path.stat().st_size for path in little.rglob("*") if path.is_file())
    settings = replace(
        base_settings, folders=(), models_dirs=(root / "models",), lora_dirs=(loras,), memory_limit=int(size * 1.5),
        max_queue=2, gallery=root / "gallery", warm=True,
    )  # fmt: skip
    assert folders
    with running(settings) as server:
        yield server


def loaded(server):
    return server.service.catalogue.names_of(server.service.dispatcher.open_folders)


def kill_painter(server):
    os.kill(server.service.painter.pid, signal.SIGKILL)


def begin(server, **order):
    """Submit a job that takes long, and return its id when it is drawn."""
    with server.client() as client:
        job = client.post("/api/jobs", json={**SMALL, "steps": 500, "num_images": 50, **order}).json()["id"]
        wait_until(lambda: client.get(f"/api/jobs/{job}").json()["step"] > 0)
    return job


def test_the_first_folder_is_opened_before_anybody_asks(rough):
    wait_until(lambda: loaded(rough) == ["first"])


def test_models_change_and_the_one_not_used_is_closed(rough):
    for name in ("second", "first"):
        job = rough.draw(model=name)
        assert job["pictures"][0]["record"]["model"] == name
        assert loaded(rough) == [name]
        assert rough.service.current_model == name
    plot = rough.draw(x={"field": "model", "values": ["first", "second"]}, num_images=2)
    assert [one["record"]["model"] for one in plot["pictures"]] == ["first", "first", "second", "second"]


def test_loras_are_merged_live_by_tag_and_by_field_and_taken_out_again(rough):
    def draw(**order):
        job = rough.draw(seed=5, model="first", **order)
        assert job["state"] == "done", job["error"]
        (picture,) = job["pictures"]
        with rough.client() as client, Image.open(io.BytesIO(client.get(picture["url"]).content)) as image:
            return image.tobytes(), picture

    plain, _ = draw()
    tagged, picture = draw(prompt="a red circle<lora:style:0.5>")
    assert (picture["prompt"], picture["record"]["loras"][0]["name"]) == ("a red circle<lora:style:0.5>", "style")
    by_field, picture = draw(loras=[{"name": "style", "weight": 0.5}])
    assert (picture["prompt"], picture["record"]["loras"][0]["weight"]) == ("a red circle", 0.5)
    assert tagged == by_field != plain
    assert draw()[0] == plain
    with rough.client() as client:
        assert [one["name"] for one in client.get("/api/loras").json()] == ["other", "style"]
    plot = rough.draw(model="first", x={"field": "lora", "values": ["style:0.1", "style:0.9"]})
    assert [one["record"]["loras"][0]["weight"] for one in plot["pictures"]] == [0.1, 0.9]


def test_a_lora_for_another_family_is_refused_with_its_name(rough):
    for order, status, said in (
        ({"loras": [{"name": "other"}]}, 422, "other.safetensors"),
        ({"prompt": "a <lora:other:1>"}, 422, "other.safetensors"),
        ({"prompt": "a <lora:styles:1>"}, 404, "did you mean 'style'?"),
    ):
        with rough.client() as client:
            answer = client.post("/api/jobs", json={**SMALL, **order})
        assert answer.status_code == status
        message = answer.json()["error"]["message"]
        assert said in message
        assert str(rough.settings.gallery.parent) not in message  # Where the operator's folders are.


def test_a_killed_painter_fails_its_job_and_the_next_is_drawn(rough):
    job = begin(rough)
    kill_painter(rough)
    failed = rough.wait(job)
    assert failed["state"] == "failed"
    assert "the process that draws was killed by SIGKILL" in failed["error"]["message"]
    assert rough.draw()["state"] == "done"


def test_a_killed_painter_plans_what_was_asked_meanwhile(rough):
    kill_painter(rough)
    assert rough.draw()["state"] == "done"


def test_a_picture_that_memory_does_not_suffice_for_fails_and_the_next_is_drawn(rough):
    assert rough.draw()["state"] == "done"
    pid = rough.service.painter.pid
    resource.prlimit(pid, resource.RLIMIT_AS, (psutil.Process(pid).memory_info().vms + (200 << 20), UNLIMITED[1]))
    failed = rough.draw(width=1024, height=1024, num_images=16, batch_size=16, steps=2)
    assert failed["state"] == "failed"
    assert "memory" in failed["error"]["message"]
    resource.prlimit(rough.service.painter.pid, resource.RLIMIT_AS, UNLIMITED)
    assert rough.draw()["state"] == "done"


def test_a_full_disk_fails_the_job_and_leaves_nothing_half_written(rough):
    assert rough.draw()["state"] == "done"
    pid, gallery = rough.service.painter.pid, rough.service.gallery.folder
    before = sorted(gallery.rglob("20*/*"))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    failed = rough.draw(seed=99)
    assert (failed["state"], failed["error"]["code"]) == ("failed", "store")
    assert "can't be written: File too large; free some space" in failed["error"]["message"]
    assert sorted(gallery.rglob("20*/*")) == before
    resource.prlimit(pid, resource.RLIMIT_FSIZE, UNLIMITED)
    assert rough.draw(seed=99)["state"] == "done"


def test_a_gallery_that_can_not_be_written_fails_the_job_and_the_next_is_drawn(rough, monkeypatch):
    insert, tried = rough.service.gallery._insert, []

    def refuse_the_first(row, maker):
        tried.append(row.job)
        if row.job == tried[0]:  # As long as the disk has no room for it; for the others it has.
            raise sqlite3.OperationalError("database or disk is full")
        insert(row, maker)

    monkeypatch.setattr(rough.service.gallery, "_insert", refuse_the_first)
    with rough.client() as client:
        jobs = [client.post("/api/jobs", json={**SMALL, "steps": 30}).json()["id"] for _ in range(3)]
    states = [(rough.wait(job)["state"], rough.wait(job)["error"]) for job in jobs]
    assert [state for state, _ in states] == ["failed", "done", "done"]
    assert "the gallery can't be written: database or disk is full; free some space" in states[0][1]["message"]
    monkeypatch.undo()
    assert len(rough.service.gallery.of_job(jobs[0])) == 1


@pytest.mark.parametrize("full", ["the journal", "a folder"])
def test_a_full_disk_is_said_on_every_route_that_writes(rough, monkeypatch, full):
    """The journal's own limit is what SQLite says of a full disk."""
    prompt = f"a red{' ' * 11_000}circle"
    picture = base64.b64encode(Path("docs/demo-edges.png").read_bytes()).decode()
    orders = {
        "/api/jobs": {**SMALL, "prompt": prompt},
        "/v1/images/generations": {"prompt": prompt, "size": "32x32"},
        "/sdapi/v1/txt2img": {"prompt": prompt, "width": 32, "height": 32, "steps": 1},
        "/sdapi/v1/img2img": {"prompt": prompt, "width": 32, "height": 32, "steps": 4, "init_images": [picture]},
    }
    journal = rough.service.journal
    if full == "the journal":
        pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
        journal._database.execute(f"PRAGMA max_page_count = {pages}")
    else:

        def refuse(*_arguments, **_named):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(journal, "add", refuse)
    try:
        with rough.client() as client:
            for path, order in orders.items():
                answer = client.post(path, json=order)
                assert answer.status_code == 507, (path, answer.text)
                assert "free some space" in json.dumps(answer.json())
            assert client.get("/healthz").status_code == 200
    finally:
        journal._database.execute("PRAGMA max_page_count = 4294967294")
    monkeypatch.undo()
    assert rough.draw()["state"] == "done"


def test_an_upload_that_finds_no_room_is_told_so(rough, monkeypatch):
    def refuse(*_arguments, **_named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(upload_reader, "write_whole", refuse)
    with rough.client() as client:
        answer = client.post("/api/uploads", content=Path("docs/demo-edges.png").read_bytes())
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "store")
        assert "No space left on device; free some space" in answer.json()["error"]["message"]


def test_a_job_that_takes_too_long_is_ended(rough, monkeypatch):
    dispatcher = rough.service.dispatcher
    monkeypatch.setattr(dispatcher, "_settings", replace(rough.settings, time_limit=1.0))
    failed = rough.draw(steps=500, num_images=50)
    assert failed["state"] == "failed"
    assert "longer than the 1 s that --time-limit allows" in failed["error"]["message"]
    monkeypatch.undo()
    assert rough.draw()["state"] == "done"


def test_a_full_queue_is_said_with_when_to_come_again(rough):
    job = begin(rough)
    with rough.client() as client:
        answers = [client.post("/api/jobs", json=SMALL) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 429]
        assert int(answers[2].headers["retry-after"]) >= 1
        for one in (job, *(answer.json()["id"] for answer in answers[:2])):
            client.post(f"/api/jobs/{one}/cancel")
            rough.wait(one)


def test_a_folder_that_vanishes_is_said_to_be_missing_and_the_others_are_drawn(rough):
    folder = rough.service.catalogue.folder("second")
    shutil.move(folder / "unet", folder / "away")
    try:
        with rough.client() as client:
            assert {one["name"]: one["state"] for one in client.get("/api/models").json()}["second"] == "missing"
            answer = client.post("/api/jobs", json={**SMALL, "model": "second"})
            assert answer.status_code == 404
            assert "unet" in answer.json()["error"]["message"]
    finally:
        shutil.move(folder / "away", folder / "unet")
    assert rough.draw(model="second")["state"] == "done"
    shutil.rmtree(folder)
    with rough.client() as client:
        answer = client.post("/api/jobs", json={**SMALL, "model": "second"})
        assert (answer.status_code, "first" in answer.json()["error"]["message"]) == (404, True)
    assert rough.draw(model="first")["state"] == "done"
