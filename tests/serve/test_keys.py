"""Keys, folders and LoRAs, as the clients of others use them."""

from __future__ import annotations

import base64
import io
import json
import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
import webuiapi
from PIL import Image

from olivelike.serve.api.guards import Guards
from tests.fixtures.late import Late
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import LONG, SMALL, running, wait_until
from tests.serve.test_comfyui_graphs import changed, from_prompt
from tests.serve.test_native_jobs import png

openai = Late("openai")
KEYS = {"anna": "key-of-anna", "bert": "key-of-bert"}


@pytest.fixture
def keyed(server, monkeypatch):
    """The server for all tests, as if it had been started with keys."""
    layer = server.app.middleware_stack
    while not isinstance(layer, Guards):
        layer = layer.app
    monkeypatch.setattr(layer, "_rules", replace(layer._rules, api_keys=KEYS))
    monkeypatch.setattr(layer, "_clients", KEYS)
    return server


@pytest.fixture(scope="module")
def two_folders(base_settings, little, tmp_path_factory):
    """A server with two folders and a LoRA."""
    from olivelike.testing.lora_files import make_lora

    root = tmp_path_factory.mktemp("two")
    for name in ("first", "second"):
        shutil.copytree(little, root / "models" / name)
    (root / "loras").mkdir()
    make_lora(root / "loras" / "style.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
    where = {"models_dirs": (root / "models",), "lora_dirs": (root / "loras",), "gallery": root / "gallery"}
    with running(replace(base_settings, folders=(), **where)) as server:
        yield server


OPEN = ExitStack()


@pytest.fixture(autouse=True)
def close_clients():
    with OPEN:
        yield


def webui(server, name=None, **options):
    key = {"username": name, "password": KEYS[name]} if name else {}
    api = webuiapi.WebUIApi(baseurl=f"{server.url}/sdapi/v1", **key, **options)
    OPEN.enter_context(api.session)
    return api


def openai_of(server, key):
    return OPEN.enter_context(openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0))


def test_the_clients_keys_open_their_apis_and_nothing_else_does(keyed):
    assert openai_of(keyed, KEYS["anna"]).models.list().data
    with pytest.raises(openai.AuthenticationError) as refused:
        openai_of(keyed, "another").models.list()
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
    client = openai_of(keyed, KEYS["anna"])
    url = client.images.generate(prompt="a", response_format="url", extra_body={"num_inference_steps": 2}).data[0].url
    with Image.open(io.BytesIO(httpx.get(url).content)) as image:
        assert image.size == (32, 32)
    bare = url.partition("?")[0]
    assert httpx.get(bare).status_code == 401
    assert httpx.get(bare, headers={"Authorization": f"Bearer {KEYS['bert']}"}).status_code == 200


def test_a_key_deletes_its_own_pictures_and_no_others(keyed, monkeypatch):
    def drawn():
        client = openai_of(keyed, KEYS["anna"])
        asked = {"prompt": "a", "response_format": "url", "extra_body": {"num_inference_steps": 1}}
        url = client.images.generate(**asked).data[0].url
        return f"{keyed.url}/api/pictures/" + url.partition("/files/")[2].partition(".")[0]

    def deleted(picture, name):
        return httpx.delete(picture, headers={"Authorization": f"Bearer {KEYS[name]}"})

    first, second = drawn(), drawn()
    refused = deleted(first, "bert")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_yours")
    many, ids = first.replace(name := first[-20:], "delete"), {"ids": [name]}
    told = httpx.post(many, json=ids, headers={"Authorization": f"Bearer {KEYS['bert']}"}).json()
    assert (told["deleted"], told["not_yours"]) == ([], [name])
    assert told["why"].startswith("1 of these pictures are another key's")
    assert deleted(first, "anna").status_code == 204
    assert deleted(first, "bert").status_code == 404
    layer = keyed.app.middleware_stack
    while not isinstance(layer, Guards):
        layer = layer.app
    # The only key there is has all.
    monkeypatch.setattr(layer, "_clients", {"bert": KEYS["bert"]})
    assert deleted(second, "bert").status_code == 204


def test_a_key_uses_what_it_sent_and_pictures_of_the_gallery_alone(keyed):
    anna, bert = (OPEN.enter_context(keyed.client(headers={"Authorization": f"Bearer {KEYS[name]}"})) for name in KEYS)
    sent = anna.post("/api/uploads", content=png()).json()["id"]
    order = {**SMALL, "init_image": sent, "strength": 0.5}
    (picture,) = keyed.wait(anna.post("/api/jobs", json=order).json()["id"])["pictures"]
    seen = bert.get(f"/api/pictures/{picture['id']}").json()["record"]["init_image"]["hash"]
    assert seen == sent  # It is no secret.
    for ask in (
        lambda: bert.get(f"/api/uploads/{sent}/preprocessed?preprocessor=none"),
        lambda: bert.post("/api/jobs", json=order),
    ):
        assert (ask().status_code, "there is no upload" in ask().text) == (404, True)
    found = [client.post("/api/uploads/find", json={"ids": [sent, "0" * 64]}).json() for client in (anna, bert)]
    assert found == [[{"id": sent, "width": 32, "height": 32}], []]
    bert.post("/api/uploads", content=png())  # He has it, too.
    shown = [client.get(f"/api/uploads/{sent}/preprocessed?preprocessor=none") for client in (anna, bert)]
    assert [one.status_code for one in shown] == [200, 200]
    copied = bert.post(f"/api/pictures/{picture['id']}/upload").json()["id"]
    (keyed.settings.gallery / ".uploads" / f"{copied}.png").unlink()
    assert anna.post("/api/uploads/find", json={"ids": [copied]}).json()[0]["id"] == copied
    anna.delete(f"/api/pictures/{picture['id']}")
    (keyed.settings.gallery / ".uploads" / f"{copied}.png").unlink()
    assert anna.post("/api/uploads/find", json={"ids": [copied]}).json() == []
    assert bert.post(f"/api/pictures/{picture['id']}/upload").status_code == 404


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
    threads[1].join(60)
    assert not threads[1].is_alive()
    assert anna.get_progress()["progress"] > 0
    anna.interrupt()
    threads[0].join(60)
    assert [result.images for result in results] == [[], []]


@pytest.mark.slow
def test_a_loras_tag_changes_the_picture_at_once_and_no_other(two_folders):
    api = webui(two_folders, sampler="Euler a")
    (listed,) = api.get_loras()
    assert (listed["name"], listed["path"]) == ("style", "style.safetensors")
    assert isinstance(listed["metadata"], dict)
    fields = {"steps": 2, "seed": 7, "width": 32, "height": 32}
    plain, tagged, weak, after = (
        api.txt2img(prompt=prompt, **fields)
        for prompt in ("a circle", "a circle<lora:style:1>", "a circle<lora:style:0.2>", "a circle")
    )
    assert len({one.image.tobytes() for one in (plain, tagged, weak)}) == 3
    assert after.image.tobytes() == plain.image.tobytes()
    assert "Lora hashes: " in tagged.info["infotexts"][0]
    by_field = openai_of(two_folders, "any").images.generate(
        prompt="a circle", size="32x32",
        extra_body={
            "num_inference_steps": 2, "seed": 7, "loras": [{"name": "style"}], "scheduler": "Euler a",
            "guidance_scale": 7,
        },
    )  # fmt: skip
    drawn = Image.open(io.BytesIO(base64.b64decode(by_field.data[0].b64_json)))
    assert drawn.tobytes() == tagged.image.tobytes()


@pytest.mark.slow
def test_the_model_is_switched_by_title_name_and_for_one_picture(two_folders):
    api = webui(two_folders)
    assert [one["model_name"] for one in api.get_sd_models()] == ["first", "second"]
    titles = {one["model_name"]: one["title"] for one in api.get_sd_models()}

    def drawn_by(**fields):
        return api.txt2img(prompt="a", steps=2, width=32, height=32, **fields).info["sd_model_name"]

    api.set_options({"sd_model_checkpoint": titles["second"]})
    assert api.get_options()["sd_model_checkpoint"] == titles["second"]
    assert drawn_by() == "second"
    assert drawn_by(override_settings={"sd_model_checkpoint": "first"}) == "first"
    assert api.get_options()["sd_model_checkpoint"] == titles["second"]
    assert drawn_by() == "second"
    api.set_options({"sd_model_checkpoint": "first"})
    assert drawn_by() == "first"


def test_options_are_those_of_the_key_that_set_them(keyed):
    anna, bert = (OPEN.enter_context(keyed.client(headers={"Authorization": f"Bearer {KEYS[name]}"})) for name in KEYS)
    asked = {"CLIP_stop_at_last_layers": 2, "samples_format": "webp", "eta_ddim": 0.5}
    before = bert.get("/sdapi/v1/options").json()
    assert anna.post("/sdapi/v1/options", json=asked).status_code == 200
    assert asked.items() <= anna.get("/sdapi/v1/options").json().items()
    assert bert.get("/sdapi/v1/options").json() == before


def test_a_key_sees_and_ends_its_own_jobs_alone(keyed):
    anna, bert = (OPEN.enter_context(keyed.client(headers={"Authorization": f"Bearer {KEYS[name]}"})) for name in KEYS)
    job = anna.post("/api/jobs", json=LONG).json()["id"]
    graph = changed(from_prompt(), n4_ckpt_name=keyed.service.current_model, n5_width=32, n5_height=32)
    prompt = anna.post("/prompt", json={"prompt": graph}).json()["prompt_id"]
    with bert.stream("GET", "/api/events") as heard:
        lines = heard.iter_lines()
        assert next(lines) == ": here"
        for method, path in (
            ("GET", ""), ("POST", "/cancel"), ("POST", "/skip"), ("GET", "/events"), ("POST", "/move"),
        ):  # fmt: skip
            answers = [bert.request(method, f"/api/jobs/{one}{path}", json={"places": 0}) for one in (job, "0" * 16)]
            assert [answer.status_code for answer in answers] == [404, 404]
            assert answers[0].text.replace(job, "0" * 16) == answers[1].text
        assert bert.get("/api/jobs").json() == {"jobs": []}
        assert bert.get("/queue").json() == {"queue_running": [], "queue_pending": []}
        bert.post("/queue", json={"delete": [prompt]})
        bert.post("/interrupt", json={"prompt_id": prompt})
        assert len(anna.get("/queue").json()["queue_pending"]) == 1
        assert anna.post(f"/api/jobs/{job}/cancel").status_code == 200
        keyed.wait(job)
        wait_until(lambda: prompt in anna.get("/history").json())
        assert bert.get(f"/history/{prompt}").json() == bert.get("/history").json() == {}
        bert.post("/history", json={"delete": [prompt]})
        assert prompt in anna.get(f"/history/{prompt}").json()
        mine = bert.post("/api/jobs", json=SMALL).json()["id"]
        told = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert told["job"] == mine
        keyed.wait(mine)
    assert [one["id"] for one in bert.get("/api/jobs").json()["jobs"]] == [mine]
