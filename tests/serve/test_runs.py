"""Workflows and conversions over HTTP: by name alone, each in a process of its own, watched as they go."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from olivelike.errors import SourceError, UsageError
from olivelike.serve import ServeSettings, create_app
from olivelike.serve.runs.run_orders import Listings, RunOrder
from tests.serve.conftest import running, wait_until
from tests.serve.server_process import kill, olivelike, start_server

PLUGIN = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
LONG = "name: long\nextends: demo\ncomponents: {unet: [convert: {fresh: true}]}\noutput: elsewhere\n"
"""A trace, of seconds."""
EVIL = "name: evil\nsource: demo\ntarget: cpu\nplugins: [../plugins]\ncomponents: {unet: [convert]}\noutput: out\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with workflows, checkpoints and a plugin that leaves a trace."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("workflows", "plugins", "checkpoints", "loras", "models"):
        (folder / name).mkdir()
    (folder / "workflows" / "mine.yaml").write_text("# Mine,\n# and small.\nextends: demo\noutput: elsewhere\n")
    (folder / "workflows" / "long.yaml").write_text(LONG)
    (folder / "workflows" / "evil.yaml").write_text(EVIL)
    (folder / "plugins" / "evil.py").write_text(PLUGIN)
    (folder / "checkpoints" / "cut.safetensors").write_bytes(b"cut off")
    (folder / "checkpoints" / "old.ckpt").write_bytes(b"pickled")
    return folder


@pytest.fixture(scope="module")
def settings(base_settings, project):
    return replace(
        base_settings,
        folders=(),
        gallery=project / "gallery",
        models_dirs=(project / "models",),
        workflows_dir=project / "workflows",
        checkpoints_dir=project / "checkpoints",
        lora_dirs=(project / "loras",),
        cache_dir=project / "cache",
    )


@pytest.fixture(scope="module")
def server(settings):
    """A server that may run things, and has no model yet."""
    pytest.importorskip("olivelike.engine.run", reason="needs all of olivelike")
    with running(settings) as server:
        yield server


@pytest.fixture
def start(client):
    def start(**order):
        answer = client.post("/api/runs", json=order)
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    return start


@pytest.fixture
def watch(client):
    return partial(events_of, client)


def events_of(client, run, after=0):
    """Return the events of a run until it has ended: pairs of type and data."""
    with client.stream("GET", f"/api/runs/{run}/events", params={"after": after}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    return [(event["type"], event) for event in map(json.loads, lines)]


def test_a_workflow_runs_and_what_it_wrote_is_served_at_once(client, start, watch, project):
    run = start(workflow="demo")
    events = watch(run)
    assert [kind for kind, _ in (events[0], events[-1])] == ["state", "state"]
    told = [event for kind, event in events if kind == "run"]
    assert (told[0]["event"]["event"], told[-1]["event"]["event"]) == ("run_started", "run_finished")
    assert "unet.convert shelved: the shelf has it" in [event["text"] for event in told]
    view = client.get(f"/api/runs/{run}").json()
    assert (view["state"], view["outputs"], view["error"], view["name"]) == ("done", ["demo"], None, "demo")
    assert view["progress"]["done"] == view["progress"]["total"] == 21
    assert [model["name"] for model in client.get("/api/models").json()] == ["demo"]
    assert (project / "models" / "demo" / "olivelike.json").is_file()
    again = watch(run)
    assert [event["number"] for kind, event in again if kind == "run"] == sorted({event["number"] for event in told})
    last = again[-1][1]["number"]
    assert [kind for kind, _ in watch(run, after=last)] == ["state"]

    report = client.get(view["report"])
    assert report.status_code == 200
    policy = report.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none';")
    assert "script" not in policy
    assert client.get(f"/api/jobs/{run}").json()["kind"] == "run"
    assert run in [view["id"] for view in client.get("/api/runs").json()["runs"]]


def test_plans_are_told_in_lines(client):
    answer = client.post("/api/runs/plan", json={"workflow": "mine", "set": {"precision": "fp16"}})
    assert answer.status_code == 200, answer.text
    assert any(line.startswith("unet.load") for line in answer.json()["lines"])


def test_a_run_is_cancelled_while_it_runs_or_waits(client, start, watch):
    first, second = start(workflow="long"), start(workflow="demo")
    assert client.get(f"/api/runs/{second}").json()["position"] in {0, None}
    assert client.post(f"/api/runs/{second}/cancel").json()["state"] == "cancelled"
    assert client.post(f"/api/runs/{first}/cancel").status_code == 200
    assert watch(first)[-1][1]["state"] == "cancelled"
    assert client.post(f"/api/runs/{first}/cancel").status_code == 409


@pytest.mark.slow
def test_a_run_that_fails_says_why(client, start, watch):
    run = start(convert={"checkpoint": "cut.safetensors", "target": "cpu"})
    state = watch(run)[-1][1]
    assert (state["state"], state["error"]["code"]) == ("failed", "source")
    assert "cut.safetensors" in state["error"]["message"]


def test_code_that_a_workflow_names_is_not_run_unless_the_operator_says_so(client, project, settings):
    for path in ("/api/runs/plan", "/api/runs"):
        refused = client.post(path, json={"workflow": "evil"})
        assert (refused.status_code, "--allow-plugins" in refused.text) == (422, True), refused.text
    assert not (project / "plugins" / "ran").exists()
    listings = Listings(replace(settings, allow_plugins=True), dict)
    assert "--allow-plugins" in listings.command(RunOrder(workflow="evil"))


def test_listings_have_what_the_operator_put_there(client):
    found = client.get("/api/workflows").json()
    mine = next(one for one in found["workflows"] if one["name"] == "mine")
    assert mine["description"] == "Mine, and small."
    assert [setting["name"] for setting in mine["settings"]] == ["target", "precision"]
    names = [one["name"] for one in found["workflows"]]
    assert {"demo", "evil", "sd15_cpu"} < set(names)
    assert mine["source_here"]
    here = [one["source_here"] for one in found["workflows"]]
    assert here == sorted(here, reverse=True), "what can run without a download stands first"
    assert "cpu" in found["convert"]["targets"]
    assert client.get("/api/checkpoints").json() == {"checkpoints": [{"name": "cut.safetensors"}]}


CONVERT = {"checkpoint": "cut.safetensors", "target": "cpu"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"workflow": "demo", "convert": CONVERT}, 422),
        ({"workflow": "nowhere"}, 404),
        ({"workflow": "../workflows/mine"}, 404),
        ({"workflow": "/etc/passwd"}, 404),
        ({"workflow": "mine.yaml"}, 404),
        ({"workflow": "--help"}, 404),
        ({"workflow": "demo\0"}, 404),
        ({"workflow": ["demo"]}, 422),
        ({"workflow": "d" * 301}, 422),
        ({"workflow": "demo", "output": "/tmp/x"}, 422),
        ({"workflow": "demo", "set": {"output": "/tmp/x"}}, 422),
        ({"workflow": "demo", "set": {"source.path": "/etc"}}, 422),
        ({"workflow": "demo", "set": {"plugins": ["evil.py"]}}, 422),
        ({"workflow": "demo", "set": {"components.unet.1.fuse.attention": False}}, 422),
        ({"workflow": "demo", "set": {"target": "cpu,output=/tmp/x"}}, 422),
        ({"workflow": "demo", "set": {"target": "cpu}\noutput: /tmp/x"}}, 422),
        ({"workflow": "demo", "set": {"precision": "fp13"}}, 422),
        ({"convert": {**CONVERT, "checkpoint": "../checkpoints/cut.safetensors"}}, 404),
        ({"convert": {**CONVERT, "checkpoint": "stable-diffusion-v1-5/stable-diffusion-v1-5"}}, 404),
        ({"convert": {**CONVERT, "checkpoint": "old.ckpt"}}, 404),
        ({"convert": {**CONVERT, "target": "../x"}}, 422),
        ({"convert": {**CONVERT, "loras": [{"name": "../../etc/passwd"}]}}, 404),
        ({"convert": {**CONVERT, "loras": [{"name": "x", "weight": "Infinity"}]}}, 422),
        ({"convert": {**CONVERT, "vae": "/etc/passwd"}}, 422),
    ],
)
def test_requests_name_what_is_listed_and_nothing_else(client, server, body, status):
    before = len(server.service.jobs())
    for path in ("/api/runs", "/api/runs/plan"):
        answer = client.post(path, json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["message"]
    assert len(server.service.jobs()) == before
    assert not Path("/tmp/x").exists()


@pytest.mark.parametrize("run", ["nowhere", "..%2f..%2fetc%2fpasswd", "%00", "a" * 5000])
def test_runs_that_there_are_not_are_not_found(client, run):
    for method, path in (("GET", ""), ("GET", "/events"), ("GET", "/report"), ("POST", "/cancel")):
        assert client.request(method, f"/api/runs/{run}{path}").status_code in {404, 405}


def test_results_need_a_folder_to_be_served_from(tmp_path):
    with pytest.raises(UsageError, match="--workflows needs --models"):
        create_app(ServeSettings(workflows_dir=Path()))
    with pytest.raises(SourceError, match="no such folder"):
        create_app(ServeSettings(checkpoints_dir=tmp_path / "none", models_dirs=(tmp_path,)))
    assert not Listings(ServeSettings(checkpoints_dir=tmp_path / "gone"), dict).checkpoints()


def test_checkpoints_are_files_and_folders_of_pipelines(tmp_path):
    for name in ("a.safetensors", "sub/b.safetensors", "pipe/unet/c.safetensors", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "pipe" / "model_index.json").touch()
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "ink.safetensors").touch()
    settings = ServeSettings(models_dirs=(tmp_path / "models",), checkpoints_dir=tmp_path)
    listings = Listings(settings, lambda: {"ink": tmp_path / "loras" / "ink.safetensors"})
    assert list(listings.checkpoints()) == ["a.safetensors", "loras/ink.safetensors", "pipe", "sub/b.safetensors"]
    chosen = {"checkpoint": "pipe", "target": "cpu", "precision": "fp16", "loras": [{"name": "ink", "weight": -0.5}]}
    assert listings.command(RunOrder.model_validate({"convert": chosen})) == [
        "convert", f"{tmp_path}/pipe", "--target", "cpu", "--output", f"{tmp_path}/models/pipe-ink-0-5-cpu-fp16",
        "--lora", f"{tmp_path}/loras/ink.safetensors:-0.5", "--precision", "fp16",
    ]  # fmt: skip
    places = [f"{folder}/b{suffix}" for folder in ("one", "two") for suffix in ("", ".1", ".1.safetensors")]
    orders = [RunOrder.model_validate({"convert": {"checkpoint": one, "target": "cpu"}}) for one in ("b.1", *places)]
    assert len({listings.name(order) for order in orders}) == 5
    assert Listings(replace(settings, checkpoints_dir=None), dict).workflows() == {}


def test_files_of_runs_that_nobody_remembers_are_dropped_at_the_start(settings, tmp_path):
    pytest.importorskip("olivelike.engine.run", reason="needs all of olivelike")
    mine = replace(settings, gallery=tmp_path / "gallery")
    old, foreign = (mine.gallery / ".runs" / name for name in ("0123456789abcdef", "notes"))
    for folder in (old, foreign):
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text("{}\n")
    with running(mine):
        assert not old.exists()
    assert (foreign / "events.jsonl").read_text() == "{}\n"


@pytest.mark.slow
def test_what_a_killed_server_ran_is_interrupted_and_the_store_is_whole(settings, project, tmp_path):
    interrupted = 0
    for attempt in range(5):
        mine = replace(settings, gallery=tmp_path / "gallery", cache_dir=tmp_path / "cache")
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        shutil.rmtree(project / "models" / "demo", ignore_errors=True)
        process, url = start_server(
            "--models", project / "models", "--workflows", project / "workflows", "--gallery", mine.gallery,
            "--cache-dir", mine.cache_dir,
        )  # fmt: skip
        try:
            with httpx.Client(base_url=url, timeout=30) as client:
                run = client.post("/api/runs", json={"workflow": "demo"}).json()["id"]
                time.sleep(1.0 + 0.4 * attempt)
        finally:
            kill(process)
        wait_until(lambda: not children_of_runs(tmp_path / "cache"), 60)
        with running(mine) as restarted, restarted.client() as client:
            view = client.get(f"/api/runs/{run}").json()
            assert view["state"] in {"interrupted", "done"}
            interrupted += view["state"] == "interrupted"
            again = client.post("/api/runs", json={"workflow": "demo"}).json()["id"]
            assert [kind for kind, _ in events_of(client, again)][-1] == "state"
            assert client.get(f"/api/runs/{again}").json()["state"] == "done"
        subprocess.run(olivelike("cache", "verify", "--cache-dir", tmp_path / "cache"), check=True)
    assert interrupted


def children_of_runs(cache):
    """Return the processes that still run something in a store: a killed server's end when they say something."""
    return [
        process for process in psutil.process_iter(["cmdline"]) if str(cache) in " ".join(process.info["cmdline"] or ())
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("printf '1\\n[]\\nnoise\\n{}\\n'; echo 'error: why' >&2; exit 4", "pass", "why"),
        ("kill -9 $$", "olivelike", "the process was ended by signal 9"),
        ("exit 1", "olivelike", ""),
    ],
)
def test_a_child_that_talks_nonsense_or_dies_fails_its_run_alone(client, start, watch, tmp_path, script, code, said):
    child = tmp_path / "child"
    child.write_text(f"#!/bin/sh\n{script}\n")
    child.chmod(0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", str(child))
        state = watch(start(workflow="demo"))[-1][1]
    assert (state["state"], state["error"]["code"], said in state["error"]["message"]) == ("failed", code, True)
    for _ in range(2):
        run = start(workflow="demo")
        assert watch(run)[-1][1]["state"] == "done"
    assert client.get(f"/api/runs/{run}/report").status_code == 404, "nothing was done, so nothing is reported"


@pytest.mark.slow
def test_more_runs_and_plans_than_can_wait_are_refused(server, client, start):
    runs = server.service.runs
    first = start(workflow="demo")
    waiting = [client.post("/api/runs", json={"workflow": "mine"}) for _ in range(22)]
    assert {answer.status_code for answer in waiting} == {202, 429}
    for answer in waiting:
        if answer.status_code == 202:
            client.post(f"/api/runs/{answer.json()['id']}/cancel")
    client.post(f"/api/runs/{first}/cancel")
    runs._plans += 5
    try:
        refused = client.post("/api/runs/plan", json={"workflow": "demo"})
    finally:
        runs._plans -= 5
    assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
