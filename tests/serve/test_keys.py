"""A server that wants keys, as the clients of others bring them."""

from __future__ import annotations

import io
import threading
from dataclasses import replace

import httpx
import openai
import pytest
import webuiapi
from conftest import running, wait_until
from PIL import Image

KEYS = {"anna": "key-of-anna", "bert": "key-of-bert"}
LONG = {"prompt": "long", "steps": 500, "width": 64, "height": 64}


@pytest.fixture(scope="module")
def keyed(base_settings, tmp_path_factory):
    gallery = tmp_path_factory.mktemp("keyed") / "gallery"
    with running(replace(base_settings, gallery=gallery, api_keys=KEYS)) as server:
        yield server


def webui(server, name):
    return webuiapi.WebUIApi(baseurl=f"{server.url}/sdapi/v1", username=name, password=KEYS[name])


def test_the_clients_keys_open_their_apis_and_nothing_else_does(keyed):
    assert openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=KEYS["anna"]).models.list().data
    with pytest.raises(openai.AuthenticationError) as refused:
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="another", max_retries=0).models.list()
    assert refused.value.body["code"] == "invalid_api_key"
    assert webui(keyed, "bert").get_options()["sd_model_checkpoint"]
    with keyed.client() as client:
        statuses = {
            path: client.get(path).status_code
            for path in (
                "/healthz", "/readyz", "/metrics", "/", "/api/jobs", "/api/events", "/v1/models", "/sdapi/v1/options",
                "/openapi.json", "/files/x.png", "/thumbs/x.webp", "/page/page.js",
            )
        }  # fmt: skip
        assert client.get("/sdapi/v1/options").headers["www-authenticate"].startswith("Basic ")
    assert {path for path, status in statuses.items() if status != 401} == {"/healthz", "/readyz"}


def test_links_work_where_a_key_is_wanted_for_all_else(keyed):
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=KEYS["anna"])
    url = client.images.generate(prompt="a", response_format="url", extra_body={"num_inference_steps": 2}).data[0].url
    with Image.open(io.BytesIO(httpx.get(url).content)) as image:
        assert image.size == (32, 32)
    bare = url.partition("?")[0]
    assert httpx.get(bare).status_code == 401
    assert httpx.get(bare, headers={"Authorization": f"Bearer {KEYS['bert']}"}).status_code == 200


def test_a_client_interrupts_and_follows_its_own_pictures_alone(serve):
    server = serve(basic={"anna": "a", "bert": "b"})
    anna, bert = (
        webuiapi.WebUIApi(baseurl=f"{server.url}/sdapi/v1", username=name, password=name[0])
        for name in ("anna", "bert")
    )
    results = []
    threads = [threading.Thread(target=lambda api=api: results.append(api.txt2img(**LONG))) for api in (anna, bert)]
    threads[0].start()
    wait_until(lambda: anna.get_progress()["progress"] > 0)
    assert bert.get_progress()["state"]["job_count"] == 0
    bert.interrupt()
    threads[1].start()
    wait_until(lambda: bert.get_progress()["state"]["job_count"] == 1)
    assert bert.get_progress()["progress"] == 0
    bert.interrupt()  # It waits, and need not be drawn first.
    threads[1].join(20)
    assert not threads[1].is_alive()
    assert anna.get_progress()["progress"] > 0
    anna.interrupt()
    threads[0].join(20)
    assert [result.images for result in results] == [[], []]
