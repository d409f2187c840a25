"""What programs ask to see whether A1111 is there, and routes that are not."""

from __future__ import annotations

import shutil

import pytest

from tests.serve.test_a1111 import FAST


def test_programs_that_look_for_a1111_find_it(client):
    assert client.get("/internal/ping").json() == {}
    assert isinstance(client.get("/app_id").json()["app_id"], int)
    assert client.get("/queue/status").json()["queue_size"] == 0


def test_a_page_lists_all_routes_without_scripts(client):
    answer = client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in answer.text
    assert "<script" not in answer.text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/sdapi/v1/interrogate", 422, "pictures are not described here"),
        ("/sdapi/v1/train/embedding", 404, "there is no such route here; /docs lists"),
        ("/nowhere", 404, "there is no such route here; /docs lists"),
    ],
)
def test_what_is_not_here_is_said_in_a_sentence(client, path, status, said):
    answer = client.post(path, json={"image": ""})
    assert answer.status_code == status
    assert said in answer.text


def test_a_model_that_a_client_chooses_is_its_own(serve, little, tmp_path):
    shutil.copytree(little, tmp_path / "other")
    running = serve(folders=(little, tmp_path / "other"), api_keys={"anna": "a" * 20, "bert": "b" * 20})
    anna, bert = (running.client(headers={"Authorization": f"Bearer {key * 20}"}) for key in "ab")

    def chosen(client):
        return client.get("/sdapi/v1/options").json()["sd_model_checkpoint"].partition(" ")[0]

    def drawn(client, path="/sdapi/v1/txt2img", body=FAST, **fields):
        assert client.post(path, json={**body, **fields}).status_code == 200
        return client.get("/api/jobs?limit=1").json()["jobs"][0]["order"]["model"]

    with anna, bert:
        assert anna.post("/sdapi/v1/options", json={"sd_model_checkpoint": "other"}).status_code == 200
        assert (chosen(anna), drawn(anna)) == ("other", "other")
        assert (chosen(bert), drawn(bert)) == (little.name, little.name)
        kept = {"override_settings": {"sd_model_checkpoint": "other"}}
        assert (drawn(bert, **kept), chosen(bert)) == ("other", little.name)
        assert (drawn(bert, **kept, override_settings_restore_afterwards=False), chosen(bert)) == ("other", "other")
        assert (
            drawn(bert, "/v1/images/generations", {"prompt": "a", "num_inference_steps": 2}, model="other") == "other"
        )
        assert anna.get("/api/server").json()["current"] == little.name
        order = {"prompt": "a", "steps": 1, "model": "other", "save": False}
        assert anna.post("/api/jobs", json=order).status_code == 202
        assert bert.get("/api/server").json()["current"] == "other"
