"""Upscalers that are files: at A1111's API, in orders, and for pictures that are there."""

from __future__ import annotations

import asyncio
import io
import threading
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from olivelike.errors import SessionError, SourceError
from olivelike.runtime.pictures import PictureRecord
from olivelike.runtime.pictures.picture_record import encode_picture
from olivelike.runtime.pictures.upscaling import Upscaler
from olivelike.runtime.sessions.session_settings import SessionSettings
from olivelike.serve.api.images import png
from olivelike.serve.upscalers import named_upscaler
from olivelike.serve.upscales import Upscales
from olivelike.serve.views import QueueFull
from tests.runtime.pictures.test_upscaling import network, photo
from tests.serve.conftest import LONG, SMALL, running, wait_until
from tests.serve.test_a1111 import FAST, decoded, encoded

NAME = "R-ESRGAN 4x+"


@pytest.fixture(scope="module")
def upscalers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("upscalers") / "upscalers"
    network(folder, scale=4).rename(folder / f"{NAME}.onnx")
    (folder / "Lanczos.onnx").write_bytes(b"is not looked at: the name is taken")
    (folder / "broken.onnx").write_bytes(b"no network")
    return folder


@pytest.fixture(scope="module")
def server(base_settings, upscalers, tmp_path_factory):
    """One server for all tests, with upscalers."""
    gallery = tmp_path_factory.mktemp("upscaling") / "gallery"
    settings = replace(base_settings, gallery=gallery, upscaler_dirs=(upscalers,))
    with running(settings) as server:
        yield server


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def test_files_enlarge_pictures_and_second_passes(client, upscalers):
    listed = client.get("/sdapi/v1/upscalers").json()
    assert [one["name"] for one in listed] == ["None", "Lanczos", "Nearest", NAME, "broken"]
    assert listed[3]["model_path"] == f"{NAME}.onnx"
    image = photo(24, 16)
    body = {"image": encoded(image), "upscaler_1": NAME, "upscaling_resize": 4}
    found = client.post("/sdapi/v1/extra-single-image", json=body).json()
    whole = Upscaler(upscalers / f"{NAME}.onnx", SessionSettings()).enlarge(image)
    assert np.abs(np.asarray(decoded(found["image"]), int) - np.asarray(whole, int)).max() <= 1
    half = {**body, "upscaling_resize": 2, "upscaler_2": "Nearest", "extras_upscaler_2_visibility": 0.5}
    many = {**half, "imageList": [{"data": encoded(image), "name": "a"}] * 2}
    answer = client.post("/sdapi/v1/extra-batch-images", json=many).json()
    assert [decoded(one).size for one in answer["images"]] == [(48, 32)] * 2
    shown = Image.blend(whole.resize((48, 32), Image.Resampling.LANCZOS), image.resize((48, 32), 0), 0.5)
    assert np.abs(np.asarray(decoded(answer["images"][0]), int) - np.asarray(shown, int)).max() <= 1
    twice = {**FAST, "enable_hr": True, "hr_upscaler": NAME, "denoising_strength": 0.5}
    answer = client.post("/sdapi/v1/txt2img", json=twice)
    assert decoded(answer.json()["images"][0]).size == (64, 64)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("another", 422, "upscaler_1: there is no upscaler 'another'"), ("broken", 422, "broken")],
)
def test_what_is_no_upscaler_is_refused_without_its_place(client, upscalers, name, status, said):
    answer = client.post("/sdapi/v1/extra-single-image", json={"image": encoded(photo(8, 8)), "upscaler_1": name})
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert str(upscalers) not in answer.text


def test_a_picture_that_would_be_too_large_is_refused(client):
    body = {"image": encoded(Image.new("RGB", (2080, 2048))), "upscaler_1": NAME, "upscaling_resize": 0.1}
    answer = client.post("/sdapi/v1/extra-single-image", json=body)
    assert answer.status_code == 422
    assert "makes 8320x8192 pixels" in answer.json()["detail"]


def test_a_picture_is_enlarged_into_the_gallery_with_the_recipe_that_it_had(client):
    listed = client.get("/api/upscalers").json()
    assert [(one["name"], one["network"]) for one in listed] == [
        ("Lanczos", False), ("Nearest", False), (NAME, True), ("broken", True),
    ]  # fmt: skip
    assert client.post("/api/jobs", json=SMALL).status_code == 202
    drawn = done(client)["pictures"][0]
    asked = {"upscaler": NAME, "factor": 3}
    answer = client.post("/api/upscale", params=asked, content=client.get(drawn["url"]).content)
    assert answer.status_code == 201, answer.text
    found = client.get(f"/api/pictures/{answer.json()['id']}").json()
    assert (found["width"], found["height"], found["seed"]) == (96, 96, drawn["seed"])
    enlarging = {"Postprocess upscale by": "3", "Postprocess upscaler": NAME}
    assert found["record"] == {**drawn["record"], "other": enlarging}
    assert client.get("/api/pictures").json()["pictures"][0]["id"] == found["id"]
    with Image.open(io.BytesIO(client.get(found["url"]).content)) as image:
        assert image.size == (96, 96)
        assert f"Postprocess upscaler: {NAME}" in image.text["parameters"]
    photographed = client.post("/api/upscale", params={**asked, "upscaler": "Nearest"}, content=png(photo(8, 6)))
    record = photographed.json()["record"]
    assert (photographed.json()["width"], record["prompt"], bool(record["init_image"])) == (24, "", True)


def test_pictures_are_enlarged_one_after_the_other_each_with_its_recipe(client):
    assert client.post("/api/jobs", json=SMALL).status_code == 202
    drawn = done(client)["pictures"][0]
    sent = [client.post(f"/api/pictures/{drawn['id']}/upload"), client.post("/api/uploads", content=png(photo(8, 6)))]
    asked = {"uploads": [one.json()["id"] for one in sent], "upscaler": NAME, "width": 40, "height": 20}
    answer = client.post("/api/upscales", json=asked)
    assert answer.status_code == 202, answer.text
    one = upscaled(client, answer.json()["id"])
    assert (one["state"], one["done"], one["progress"], one["error"]) == ("done", 2, 1.0, None)
    told = {"Postprocess upscale to": "40x20", "Postprocess upscaler": NAME, "Postprocess crop to": "40x20"}
    assert [(view["width"], view["height"]) for view in one["pictures"]] == [(40, 20)] * 2
    assert one["pictures"][0]["record"] == {**drawn["record"], "other": told}
    whole = client.post("/api/upscales", json={**asked, "uploads": asked["uploads"][:1], "crop": False}).json()["id"]
    assert upscaled(client, whole)["pictures"][0]["width"] == upscaled(client, whole)["pictures"][0]["height"] == 40


def test_a_picture_that_can_not_be_enlarged_keeps_no_other_from_it_and_the_networks_factor_is_told(client):
    sizes = [(2080, 2048), (8, 6)]
    large, small = (client.post("/api/uploads", content=png(Image.new("RGB", size))).json()["id"] for size in sizes)
    asked = {"uploads": [large, small], "upscaler": NAME, "factor": 2}
    one = upscaled(client, client.post("/api/upscales", json=asked).json()["id"])
    assert (one["state"], one["done"], [view["width"] for view in one["pictures"]]) == ("done", 2, [16])
    (refused,) = one["refused"]
    assert refused["upload"] == large
    assert refused["error"].startswith(f"{NAME} makes 8320x8192 pixels")
    assert [found["scale"] for found in client.get("/api/upscalers").json()] == [None, None, 4, None]
    alone = upscaled(client, client.post("/api/upscales", json={**asked, "uploads": [large]}).json()["id"])
    assert (alone["state"], alone["error"]) == ("failed", refused["error"])
    broken = {**asked, "uploads": [small] * 2, "upscaler": "broken"}
    ended = upscaled(client, client.post("/api/upscales", json=broken).json()["id"])
    assert (ended["state"], len(ended["refused"])) == ("failed", 1)


def upscaled(client, name):
    """Return an enlargement when it has ended."""
    found = []

    def ended():
        found.append(next(one for one in client.get("/api/upscales").json() if one["id"] == name))
        return found[-1]["state"] != "running"

    wait_until(ended)
    return found[-1]


def test_what_is_enlarged_tells_how_far_it_is_and_is_ended_between_tiles(server, client):
    large = client.post("/api/uploads", content=png(Image.new("RGB", (2000, 1800)))).json()["id"]
    asked = {"uploads": [large] * 8, "upscaler": NAME, "factor": 2}
    one = client.post("/api/upscales", json=asked).json()
    shares = []

    def begun():
        shares.append(client.get("/sdapi/v1/progress").json())
        return shares[-1]["progress"] > 0

    wait_until(begun)
    assert (shares[-1]["state"]["job"], shares[-1]["state"]["job_count"]) == (one["id"], 8)
    assert server.service.dispatcher.needed_uploads() == {large}  # Others' uploads don't take its place.
    assert client.post(f"/api/upscales/{one['id']}/cancel").status_code == 200
    ended = upscaled(client, one["id"])
    assert (ended["state"], ended["error"]) == ("cancelled", None)
    assert ended["done"] < 8
    assert not server.service.dispatcher.needed_uploads()
    assert client.post("/api/upscales/none/cancel").status_code == 404
    assert client.get("/sdapi/v1/progress").json()["progress"] == 0


def test_one_client_leaves_room_for_the_enlargements_of_others():
    async def waits(one):
        await asyncio.sleep(60)

    async def begun():
        upscales = Upscales()
        for _ in range(8):
            upscales.start("anna", 1, waits)
        with pytest.raises(QueueFull, match="^8 enlargements wait already"):
            upscales.start("anna", 1, waits)
        for _ in range(8):
            upscales.start("bert", 1, waits)
        with pytest.raises(QueueFull, match="^16 enlargements wait already"):
            upscales.start("carl", 1, waits)
        upscales.close()
        await asyncio.gather(*(one.task for one in upscales.running()), return_exceptions=True)
        assert not [*upscales.running()]

    asyncio.run(begun())


def test_what_nobody_waits_for_any_more_is_not_enlarged_behind_a_job(server, client, upscalers, monkeypatch):
    upload = client.post("/api/uploads", content=png(photo(8, 6))).json()["id"]
    job = client.post("/api/jobs", json=LONG).json()["id"]
    wait_until(lambda: client.get(f"/api/jobs/{job}").json()["step"])
    painter, told = server.service.painter, []
    send = painter.start().send
    monkeypatch.setattr(painter.start(), "send", lambda message: (told.append(message["do"]), send(message)))
    asked = {"upload": upload, "upscaler": str(upscalers / f"{NAME}.onnx"), "folder": None}
    with pytest.raises(SessionError, match="gave no answer within"):
        server.call(painter.enlarge(seconds=0.05, tell=lambda *_: None, **asked))
    assert told == ["enlarge", "end"] * 2
    client.post(f"/api/jobs/{job}/cancel")
    server.wait(job)


def ask(client, address, body, answers):
    answers.append(client.post(address, json=body, timeout=60))


def test_an_interrupted_batch_of_extras_has_what_was_done_and_a_picture_alone_no_network(client):
    image = encoded(Image.new("RGB", (1000, 900)))
    body = {"upscaler_1": NAME, "upscaling_resize": 2}
    for route, sent in (("batch-images", {"imageList": [{"data": image}] * 8}), ("single-image", {"image": image})):
        answers: list = []
        thread = threading.Thread(target=ask, args=(client, f"/sdapi/v1/extra-{route}", {**body, **sent}, answers))
        thread.start()
        wait_until(lambda: client.get("/sdapi/v1/progress").json()["state"]["job"])
        client.post("/sdapi/v1/interrupt")
        thread.join()
        assert answers[0].status_code == 200, answers[0].text
        if "images" in answers[0].json():
            assert len(answers[0].json()["images"]) < 8
        else:
            assert decoded(answers[0].json()["image"]).size == (2000, 1800)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"factor": 2, "width": 8, "height": 8}, "give factor, or width and height"),
        ({"width": 8}, "give factor, or width and height"),
        ({"factor": 2, "uploads": []}, "uploads"),
        ({"factor": 2, "uploads": ["0" * 64] * 101}, "uploads"),
        ({"factor": 2, "upscaler": "another"}, "there is no 'another'"),
    ],
)
def test_enlargements_that_can_not_be_are_refused(client, more, said):
    answer = client.post("/api/upscales", json={"uploads": ["0" * 64], "upscaler": NAME, **more})
    assert (answer.status_code, said in answer.text) == (422, True), answer.text


@pytest.mark.parametrize("seed", [2**70, -5])
def test_a_seed_that_none_can_have_comes_with_no_picture(client, seed):
    data = encode_picture(Image.new("RGB", (8, 8)), ".png", PictureRecord("a cat", seed=seed), metadata=True)
    answer = client.post("/api/upscale", params={"upscaler": "Nearest", "factor": 2}, content=data)
    assert answer.status_code == 201, answer.text
    assert answer.json()["seed"] is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"upscaler": "another", "factor": 2}, "there is no 'another'; there are Lanczos, Nearest"),
        ({"upscaler": "../upscalers/broken", "factor": 2}, "there is no '../upscalers/broken'"),
        ({"upscaler": "broken", "factor": 2}, "broken"),
        ({"upscaler": "Nearest", "factor": 9}, "factor"),
        ({"upscaler": "Nearest", "factor": 8}, "has a side of more than the 8192 pixels"),
    ],
)
def test_what_can_not_be_enlarged_is_refused(client, upscalers, asked, said):
    answer = client.post("/api/upscale", params=asked, content=png(Image.new("RGB", (1100, 4))))
    assert answer.status_code == 422
    assert said in answer.json()["error"]["message"]
    assert str(upscalers) not in answer.text


def test_an_order_names_an_upscaler_for_hires_and_records_tell_it(client, upscalers):
    answer = client.post("/api/jobs", json={**SMALL, "hires": 2, "hires_strength": 0.7, "upscaler": NAME})
    assert answer.status_code == 202, answer.text
    (picture,) = done(client)["pictures"]
    assert (picture["width"], picture["record"]["upscaler"]["name"]) == (64, f"{NAME}.onnx")
    assert f"Hires upscaler: {NAME}," in picture["parameters"]
    assert client.post("/api/recipes", json={"record": picture["record"]}).json()["left_out"] is None
    for name, status in (("another", 404), ("../upscalers/broken", 404), ("broken", 422)):
        answer = client.post("/api/jobs", json={**SMALL, "upscaler": name})
        assert answer.status_code == status
        assert name in answer.json()["error"]["message"]
        assert str(upscalers) not in answer.text


def test_hires_fix_enlarges_pixels_without_a_network_and_its_recipe_is_read_back(client):
    assert client.post("/api/jobs", json={**SMALL, "hires": 2, "upscaler": "Nearest"}).status_code == 202
    (picture,) = done(client)["pictures"]
    assert (picture["width"], picture["record"]["upscaler"]["name"]) == (64, "Nearest")
    assert "Hires upscaler: Nearest," in picture["parameters"]
    pasted = client.post("/api/recipes", json={"text": picture["parameters"]}).json()
    assert (pasted["record"]["upscaler"]["name"], pasted["left_out"]) == ("Nearest", None)
    answer = client.post("/api/jobs", json={**SMALL, "upscaler": "Nearest"})
    assert (answer.status_code, "it says no size" in answer.text) == (422, True)


def done(client):
    """Return the newest job when it has ended."""
    found = []
    wait_until(lambda: found.append(client.get("/api/jobs?limit=1").json()["jobs"][0]) or found[-1]["state"] == "done")
    return found[-1]


def test_a_folder_of_upscalers_that_is_not_there_is_refused(serve, tmp_path):
    with pytest.raises(SourceError, match="--upscaler-dir .*nowhere: no such folder"):
        serve(upscaler_dirs=(tmp_path / "nowhere",))


@pytest.mark.parametrize(("theirs", "file"), [
    ("R-ESRGAN 4x+", "RealESRGAN_x4plus"), ("R-ESRGAN 4x+ Anime6B", "RealESRGAN_x4plus_anime_6B"),
    ("R-ESRGAN 2x+", "RealESRGAN_x2plus"), ("R-ESRGAN General 4xV3", "realesr-general-x4v3"),
    ("R-ESRGAN General WDN 4xV3", "realesr-general-wdn-x4v3"), ("4x-UltraSharp", "4xUltraSharp"),
    ("SwinIR 4x", "SwinIR_4x"), ("R-ESRGAN 4x+", "R-ESRGAN 4x+"), ("Latent", None), ("", None),
])  # fmt: skip
def test_a1111s_name_of_an_upscaler_is_that_of_its_file(theirs, file):
    others = ["4x_NMKD-Superscale-SP_178000_G", "RealESRGAN_x8plus", "---"]
    assert named_upscaler(theirs, [*others, *([file] if file else [])]) == file


def test_a_recipe_of_a1111_has_its_hires_fix_where_the_upscaler_is_here(client):
    text = "a star\nSteps: 3, Sampler: Euler, Seed: 1, Denoising strength: 0.4, Hires upscale: 2, Hires upscaler: {}"
    found = client.post("/api/recipes", json={"text": text.format("RealESRGAN_x4plus")}).json()
    record = found["record"]
    assert (record["hires"], record["hires_strength"], record["upscaler"]["name"]) == (2, 0.4, f"{NAME}.onnx")
    assert found["left_out"] is None
    missing = client.post("/api/recipes", json={"text": text.format("4x-UltraSharp")}).json()
    assert (missing["record"]["hires"], missing["record"]["hires_strength"]) == (2, 0.4)
    assert "upscaler" not in missing["record"]
    assert missing["left_out"].endswith(
        "another: Hires upscaler 4x-UltraSharp; no file of the server's --upscaler-dir is that upscaler, so the "
        "latents are enlarged"
    )
    latent = text.format("Latent") + ", Hires steps: 10"
    latent = client.post("/api/recipes", json={"text": latent}).json()
    assert (latent["record"]["hires"], latent["record"]["hires_steps"], latent["left_out"]) == (2, 10, None)
    odd = client.post("/api/recipes", json={"text": text.replace("0.4", "some").format(NAME)}).json()
    assert "Hires upscaler R-ESRGAN 4x+" in odd["left_out"]
