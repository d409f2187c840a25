from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from olivelike.serve import catalogue as catalogue_module
from olivelike.serve.api.catalogue_routes import tells_whole_paths
from olivelike.serve.api.guards import Visitor
from olivelike.serve.catalogue import Catalogue
from olivelike.serve.runs.run_orders import Listings
from olivelike.serve.settings import ServeSettings
from olivelike.serve.upscalers import upscaler_files
from tests.serve.conftest import SMALL, wait_until


def test_what_is_told_of_a_folder_follows_each_of_its_files(little, tmp_path):
    folder = tmp_path / "painter"
    shutil.copytree(little, folder)
    catalogue = Catalogue(ServeSettings(folders=(folder,)))
    assert catalogue.embeddings("painter") == []
    (model,) = catalogue.models(loaded=["painter"])
    assert (model.state, model.loaded) == ("ready", True)

    tokenizer = folder / "tokenizer" / "tokenizer.json"
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    last = content["added_tokens"][-1]
    content["added_tokens"] += [{**last, "content": name, "special": False} for name in ("oil", "oil_1", "ink")]
    tokenizer.write_text(json.dumps(content), encoding="utf-8")
    width = json.loads((folder / "text_encoder" / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    found = [(one.name, one.vectors, one.width) for one in catalogue.embeddings("painter")]
    assert found == [("ink", 1, width), ("oil", 2, width)]
    scheduler = folder / "scheduler" / "scheduler_config.json"
    config = json.loads(scheduler.read_text(encoding="utf-8"))
    scheduler.write_text(json.dumps({**config, "_class_name": "EulerDiscreteScheduler"}), encoding="utf-8")
    assert catalogue.models([])[0].scheduler == "EulerDiscreteScheduler"

    tokenizer.write_text("[]", encoding="utf-8")
    assert catalogue.embeddings("painter") == []
    (folder / "model_index.json").unlink()
    assert catalogue.models([])[0].state == "missing"
    assert catalogue.embeddings("painter") == []
    assert catalogue.embeddings("nobody") == []


def test_folders_are_found_as_they_come_and_go_and_through_links(little, tmp_path):
    shelf, elsewhere = tmp_path / "shelf", tmp_path / "elsewhere"
    shelf.mkdir()
    shutil.copytree(little, elsewhere / "ink")
    catalogue = Catalogue(ServeSettings(folders=(little,), models_dirs=(shelf, tmp_path / "none")))
    assert list(catalogue.folders()) == [little.name]
    (shelf / "empty").mkdir()
    shutil.copytree(elsewhere / "ink", shelf / "oil")
    (shelf / "link").symlink_to(elsewhere / "ink", target_is_directory=True)
    assert catalogue.folders() == {little.name: little, "ink": elsewhere / "ink", "oil": shelf / "oil"}
    (shelf / "link").unlink()
    shutil.copytree(elsewhere / "ink", shelf / little.name)
    assert set(catalogue.folders()) == {little.name, f"{little.name}-2", "oil"}
    (shelf / "oil" / "model_index.json").unlink()
    assert list(catalogue.folders()) == [little.name, f"{little.name}-2"]


def test_a_turn_of_the_loop_looks_for_folders_once(little, tmp_path):
    catalogue = Catalogue(ServeSettings(folders=(), models_dirs=(tmp_path,)))

    async def look() -> list[list[str]]:
        seen = []
        for name in ("ink", "oil"):
            shutil.copytree(little, tmp_path / name)
            seen.append(list(catalogue.folders()))
        await asyncio.sleep(0)
        return [*seen, list(catalogue.folders())]

    assert asyncio.run(look()) == [["ink"], ["ink"], ["ink", "oil"]]


def test_a_model_that_is_called_by_its_name_is_the_only_one_that_is_looked_at(little, tmp_path, monkeypatch):
    for name in ("ink", "oil"):
        shutil.copytree(little, tmp_path / name)
    catalogue, looked_at = Catalogue(ServeSettings(folders=(), models_dirs=(tmp_path,))), []
    look = catalogue_module._model

    def with_hash(name, folder):
        looked_at.append(name)
        hashed = {"title": f"{name} [abc]", "hash": "abc", "sha256": "abcdef"}  # Both are copies of one.
        return look(name, folder).model_copy(update=hashed)

    monkeypatch.setattr(catalogue_module, "_model", with_hash)
    found = catalogue.model("oil")
    assert catalogue.model("oil [abc]") == found
    assert (found.name, looked_at) == ("oil", ["oil"])
    assert catalogue.model("abcdef").name == "ink"
    assert catalogue.model("oil [abd]") is None
    assert catalogue.model("water") is None


def test_a_model_tells_what_it_is_made_for_and_how_large_it_is(client):
    (model,) = client.get("/api/models").json()
    assert (model["made_for"], model["examples"]) == ("cpu in fp32", [])
    assert model["size"] > 100_000


def test_a_model_that_is_closed_is_no_longer_told_as_loaded(client):
    def loaded():
        return client.get("/api/models").json()[0]["loaded"]

    job = client.post("/api/jobs", json={"prompt": "a red circle", **SMALL}).json()["id"]
    wait_until(lambda: client.get(f"/api/jobs/{job}").json()["state"] == "done")
    assert loaded()
    assert client.post("/api/models/unload").status_code == 204
    wait_until(lambda: not loaded())


def test_a_model_that_is_opened_for_a_job_is_told_first_and_loaded_while_it_draws(server, client, monkeypatch):
    server.draw()
    client.post("/api/models/unload")
    wait_until(lambda: not client.get("/api/models").json()[0]["loaded"])
    service, told = server.service, []
    publish = service.feed.publish

    def publish_and_look(event):
        is_loaded = bool(service.catalogue.names_of(service.dispatcher.open_folders))
        told.append((event["type"], service.job(event["job"]).opening, is_loaded))
        publish(event)

    monkeypatch.setattr(service.feed, "publish", publish_and_look)
    name = server.draw(steps=1)["order"]["model"]
    began = [one for one in told if one[0] in ("started", "opening", "opened", "step")]
    assert began[:2] == [("started", name, False), ("opening", name, False)]
    assert began[-2:] == [("opened", None, True), ("step", None, True)]
    again = len(told)
    server.draw()
    assert not any(opening for _, opening, _ in told[again:])


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_a_name_that_is_no_utf8_takes_no_other_with_it(little, tmp_path):
    name = os.fsdecode(b"n\xff")
    for one in (f"{name}.safetensors", "ink.safetensors", f"{name}.onnx", "wide.onnx"):
        (tmp_path / one).write_bytes(b"")
    (tmp_path / name).mkdir()
    (tmp_path / name / "model_index.json").write_text("{}")
    catalogue = Catalogue(ServeSettings(folders=(little,), models_dirs=(tmp_path,), lora_dirs=(tmp_path,)))
    assert list(catalogue.folders()) == [little.name]
    assert list(catalogue.lora_files()) == ["ink"]
    assert list(upscaler_files([tmp_path])) == ["wide"]


def test_a_lora_of_a_subfolder_is_told_once_with_its_folder(tmp_path):
    for place in ("ink", "styles/woodcut", "old/ink"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / f"{place}.safetensors").touch()
    catalogue = Catalogue(ServeSettings(folders=(), lora_dirs=(tmp_path,)))
    told = {"ink": "ink.safetensors", "old/ink": "old/ink.safetensors", "woodcut": "styles/woodcut.safetensors"}
    assert {one.name: one.path for one in catalogue.loras()} == told
    assert set(Listings(ServeSettings(), catalogue.lora_files).loras()) == set(told)


def test_a_folder_that_is_named_and_usual_is_told_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loras").mkdir()
    settings = ServeSettings(folders=(), lora_dirs=(Path("loras"), tmp_path / "loras"))
    assert settings.places(whole=True)["--lora-dir"] == [(tmp_path / "loras").as_posix()]
    assert settings.places(whole=False)["--lora-dir"][0] == "loras"


@pytest.mark.parametrize(
    ("options", "is_whole"),
    [
        ({}, True), ({"api_keys": {"her": "k"}}, True), ({"api_keys": {"her": "k", "him": "l"}}, False),
        ({"host": "0.0.0.0"}, False), ({"allow_hosts": ("studio",)}, False), ({"proxies": ("127.0.0.1",)}, False),
    ],
)  # fmt: skip
def test_whole_paths_are_told_to_who_sits_at_the_machine_or_has_the_only_key(options, is_whole):
    settings = ServeSettings(gallery=Path("gallery"), folders=(), **options)
    visitor = Visitor("her", b"" if settings.api_keys else None, alone=len(settings.api_keys) == 1)
    assert tells_whole_paths(visitor, Headers(), settings) is is_whole
    if not options:  # A proxy at this machine may bring anybody's.
        assert not tells_whole_paths(visitor, Headers({"x-forwarded-for": "192.0.2.1"}), settings)
