"""Bodies of A1111's API of any form: each is answered as documented, and none takes long or much."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from olivelike.errors import UsageError
from olivelike.serve import create_app
from olivelike.serve.api.a1111_fields import BODIES, OPTIONS
from tests.fuzz.hostile import BYTES, NUMBERS, QUICK, SLOW, damage_json, feed, odd_value
from tests.serve.test_a1111 import encoded, half_mask, picture

if TYPE_CHECKING:
    from olivelike.serve.service import Service

RUNS = pytest.mark.parametrize("runs", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
SMALL = {"prompt": "a (red:1.2) circle", "steps": 2, "width": 16, "height": 16}
ROUTES = ("txt2img", "txt2img", "img2img", "extra-single-image", "extra-batch-images", "png-info", "options")
JSON = {"Content-Type": "application/json"}
DOCUMENTED = {400, 404, 413, 422}
OURS = ("guidance_scale", "num_images", "clip_layer", "variation_seed", "hires_strength", "Traceback", "a bug")
SAID = (
    "Euler a", "Euler", "DDIM", "DPM++ 2M Karras", "DPM++ 2M SDE", "UniPC", "Karras", "Automatic", "karras", "Beta",
    "Lanczos", "Nearest", "Latent", "None", "Use same sampler", "R-ESRGAN 4x+", "png", "webp", "", "<lora:x:1>",
    "1", "2.0", " 7 ", "-1", "0.5", "1e3", "true", "false", "0",
)  # fmt: skip


def asked(rng, name, field):
    """Return a value of a field: its default, one of its kind, or one of another kind."""
    kind = rng.randrange(8)
    match field.default:
        case _ if kind == 0:
            return field.default
        case _ if kind == 1:
            return odd_value(rng)
        case bool():
            return rng.choice((True, False, 0, 1, "true", "0"))
        case int() | float():
            return rng.choice((0, 1, 2, 0.5, 1.0, "1", "2.0", -1, 16, *NUMBERS[:6]))
    if "image" in name or name == "mask":
        return encoded(picture(size=(16, 16)))
    return rng.choice((*SAID, None, [], {}, 1, 0.5))


def some(rng, fields, least=0):
    """Return some fields with values, those that do something here more often than others."""
    names = [name for name, field in fields.items() for _ in range(4 if field.state == "done" else 1)]
    return {name: asked(rng, name, fields[name]) for name in rng.choices(names, k=rng.choice((least, 1, 2, 4)))}


def body(rng, route):
    """Return a body before it is damaged."""
    image = encoded(picture(size=(16, 16)))
    found = some(rng, BODIES[route])
    if route.endswith("2img"):
        found = {**SMALL, **({"init_images": [image]} if route == "img2img" else {}), **found}
        if rng.random() < 0.4:
            found["override_settings"] = some(rng, OPTIONS, least=1)
        if route == "img2img" and rng.random() < 0.3:
            found["mask"] = encoded(half_mask((16, 16)))
        if rng.random() < 0.1:
            unit = {"image": image, "module": rng.choice(("none", "canny", "ip-adapter-auto")), "weight": rng.random()}
            found["alwayson_scripts"] = {rng.choice(("controlnet", "ControlNet", "ADetailer")): {"args": [unit]}}
    elif route == "extra-batch-images":
        found["imageList"] = [{"data": image, "name": "a"}] * rng.choice((0, 1, 2))
    elif route != "options":
        found = {"image": image, "upscaler_1": rng.choice(SAID), **found}
    return found


def checked(route, answer):
    """Check an answer; raise `UsageError` for a refusal, as readers do."""
    if answer.status_code != 200:
        assert answer.status_code in DOCUMENTED, answer.text
        said = answer.json()
        assert set(said) == {"error", "detail", "body", "errors"}
        assert said["detail"]
        assert len(said["detail"]) < 8000
        assert not any(word in said["detail"] for word in OURS), said
        raise UsageError(said["detail"])
    if route.endswith("2img"):
        info = json.loads(answer.json()["info"])
        assert isinstance(info["warnings"], list)
        assert len(info["infotexts"]) >= len(answer.json()["images"])


def made(rng):
    """Return a route and a body, damaged or not."""
    route = rng.choice(ROUTES)
    return route, damage_json(rng, body(rng, route), None if rng.random() < 0.5 else 0)


def asking(post):
    """Return what sends a sample by `post`, and sets the options back afterwards."""

    def read(sample):
        route, data = sample
        answer = post(f"/sdapi/v1/{route}", data)
        if route == "options" and answer.status_code == 200:
            post("/sdapi/v1/options", b'{"CLIP_stop_at_last_layers": 1, "samples_format": "png"}')
        checked(route, answer)

    return read


@pytest.fixture
def undrawn(base_settings, tmp_path, monkeypatch):
    """Send bodies to an application that does all but draw: each job is cancelled as soon as it is queued."""
    app = create_app(replace(base_settings, gallery=tmp_path / "gallery", max_side=64, max_steps=8, max_images=2))
    service: Service = app.state.service

    async def plan(*_: object) -> dict[str, Any]:
        return {"pictures": 1, "batches": 1, "steps": 1, "notes": [], "reads": []}

    monkeypatch.setattr(service.dispatcher, "plan", plan)
    monkeypatch.setattr(service.dispatcher, "push", lambda job, _: service.journal.end(job, "cancelled"))
    loop = asyncio.new_event_loop()
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
    yield lambda path, data: loop.run_until_complete(client.post(path, content=data, headers=JSON))
    loop.run_until_complete(client.aclose())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    service.gallery.close()


@RUNS
def test_bodies_of_any_form_are_taken_or_refused_in_a1111s_words(undrawn, caplog, runs):
    with caplog.at_level(logging.ERROR):
        read = asking(undrawn)
        read(("txt2img", json.dumps(SMALL).encode()))
        feed(read, made, runs).check(0.2)
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("runs", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_is_taken_of_them_is_drawn_or_refused_too(serve, caplog, runs):
    server = serve(max_side=64, max_steps=8, max_images=2, time_limit=20)
    with server.client() as client, caplog.at_level(logging.ERROR):
        read = asking(lambda path, data: client.post(path, content=data, headers=JSON))
        read(("txt2img", json.dumps(SMALL)))
        painter = psutil.Process(server.service.painter.pid)
        before = painter.memory_info().rss
        feed(read, made, runs, seed=1).check(0.2)
        assert painter.pid == server.service.painter.pid, "it was not started again"
        assert painter.memory_info().rss - before < BYTES
    assert [record.getMessage() for record in caplog.records] == []
