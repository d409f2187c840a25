"""ComfyUI's API as Open WebUI, the plugin for Krita and SwarmUI use it: what they send, and what they read.

Written down from `open_webui/utils/images/comfyui.py`, `ai_diffusion/backend/comfy_client.py` and
`ComfyUIAPIAbstractBackend.cs`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket as socket_module
import struct
import threading
import uuid
from pathlib import PurePosixPath

import pytest
from PIL import Image, ImageFilter
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from olivelike.serve.api import comfyui, comfyui_state
from olivelike.serve.api.comfyui import _grown
from olivelike.serve.api.comfyui_state import picture_file
from olivelike.serve.api.refusals import RequestRefusedError
from tests.serve.conftest import wait_until
from tests.serve.test_comfyui_graphs import changed, custom, from_picture, from_prompt, node
from tests.serve.test_native_jobs import png


def little(graph, server, **inputs):
    """Return a graph of the served folder, small and with few steps."""
    model = next(iter(server.service.catalogue.folders()))
    small = changed(graph, n4_ckpt_name=model, n5_width=32, n5_height=32, **inputs)
    if "3" in small:
        small = changed(small, n3_steps=3)
    return small


def socket(server, client="a-client", **options):
    return connect(f"{server.url.replace('http', 'ws')}/ws?clientId={client}", open_timeout=10, **options)


def heard(listening, prompt, seconds=30):
    """Return what is told until a prompt has ended: types with data, and pictures with their format."""
    found = []
    while True:
        message = listening.recv(timeout=seconds)
        if isinstance(message, bytes):
            kind, form = struct.unpack(">II", message[:8])
            assert kind == 1
            found.append(({1: "JPEG", 2: "PNG"}[form], Image.open(io.BytesIO(message[8:]))))
            continue
        told = json.loads(message)
        found.append((told["type"], told["data"]))
        if told["type"] == "executing" and told["data"]["node"] is None and told["data"]["prompt_id"] == prompt:
            return found


def kinds(told):
    return list(dict.fromkeys(kind for kind, _ in told))


def test_open_webui_draws_and_fetches_what_history_names(server, client):
    with socket(server) as listening:
        first = json.loads(listening.recv(timeout=10))
        assert first["data"]["status"] == {"exec_info": {"queue_remaining": 0}}
        body = {"prompt": little(from_prompt(), server), "client_id": "a-client"}
        prompt = client.post("/prompt", json=body, headers={"Authorization": "Bearer any"}).json()["prompt_id"]
        told = heard(listening, prompt)
    assert [kind for kind in kinds(told) if kind not in ("status", "JPEG")] == [
        "execution_start", "execution_cached", "executing", "progress", "executed", "execution_success",
    ]  # fmt: skip
    steps = [data for kind, data in told if kind == "progress"]
    assert steps[-1]["value"] == steps[-1]["max"] == 6
    assert [data["node"] for kind, data in told if kind == "executing"] == ["4", "3", "8", "9", None]
    history = client.get(f"/history/{prompt}").json()[prompt]
    assert history["status"]["status_str"] == "success"
    assert len(history["outputs"]["9"]["images"]) == 2
    for image in history["outputs"]["9"]["images"]:
        assert image.keys() == {"filename", "subfolder", "type"}
        picture = client.get("/view", params=image)
        assert picture.headers["content-type"] == "image/png"
        with Image.open(io.BytesIO(picture.content)) as found:
            assert found.size == (32, 32)
            assert "a lighthouse" in found.text["parameters"]
    assert prompt in client.get("/api/history").json()
    client.post("/history", json={"delete": [prompt]})
    assert client.get(f"/history/{prompt}").json() == {}


def test_open_webui_edits_a_picture_that_it_sent(server, client):
    sent = client.post(
        "/api/upload/image", files={"image": ("cat.png", png((32, 32)), "image/png")}, data={"type": "input"}
    )
    assert sent.json() == {"name": "cat.png", "subfolder": "", "type": "input"}
    assert client.get("/view", params={"filename": "cat.png", "type": "input"}).status_code == 200
    graph = little(from_picture(), server)
    prompt = client.post("/prompt", json={"prompt": graph, "client_id": "other"}).json()["prompt_id"]
    assert ended(client, prompt)["status"]["completed"]
    job = client.get("/api/jobs?limit=1").json()["jobs"][0]
    assert (job["order"]["strength"], job["order"]["steps"]) == (0.5, 6)
    mask = Image.new("RGBA", (32, 32), (255, 255, 255, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 16, 32))
    kept = io.BytesIO()
    mask.save(kept, "PNG")
    client.post(
        "/upload/image", files={"image": ("half.png", kept.getvalue(), "image/png")}, data={"overwrite": "true"}
    )
    inpainted = {
        "10": node("LoadImage", image="half.png"),
        "11": node("VAEEncodeForInpaint", pixels=["10", 0], vae=["4", 2], mask=["10", 1], grow_mask_by=2),
    }
    graph = changed(little(from_picture(**inpainted), server), n3_denoise=1)
    prompt = client.post("/prompt", json={"prompt": graph}).json()["prompt_id"]
    assert ended(client, prompt)["status"]["completed"]
    job = client.get("/api/jobs?limit=1").json()["jobs"][0]
    data = server.call(server.service.library.upload_bytes(job["order"]["mask"]))
    with Image.open(io.BytesIO(data)) as drawn:
        assert [drawn.getpixel((x, 5)) for x in (0, 15, 16, 18, 31)] == [255, 255, 255, 0, 0]
    data = server.call(server.service.library.upload_bytes(job["order"]["init_image"]))
    with Image.open(io.BytesIO(data)) as drawn:
        assert [drawn.getpixel((x, 5)) for x in (0, 15, 16)] == [(128, 128, 128)] * 2 + [(255, 255, 255)]


def ended(client, prompt):
    found = {}
    wait_until(lambda: found.update(client.get(f"/history/{prompt}").json()) or prompt in found)
    return found[prompt]


def test_krita_connects_and_draws_by_its_own_ids(server, client):
    assert client.get("/system_stats").json()["devices"][0]["vram_total"] > 0
    with socket(server, "krita", additional_headers={"Authorization": "Bearer any"}):
        pass
    told = client.get("/object_info").json()
    assert told["LoraLoader"]["input"]["required"]["lora_name"][0] == []
    assert client.get("/api/etn/languages").json() == []
    models = client.get("/api/etn/model_info/checkpoints", params={"offset": 0, "limit": 8}).json()
    assert models["_meta"]["total"] == len(models) - 1 == 1
    (name,) = models.keys() - {"_meta"}
    assert models[name]["base_model"] == "sd15"
    assert client.get("/api/etn/model_info/diffusion_models").json() == {}
    with socket(server, "krita") as listening:
        assert client.post("/api/etn/workflow/subscribe", json={"client_id": "krita"}).status_code == 200
        assert client.put("/api/etn/image/0badcafe", content=png((32, 32))).status_code == 201
        graph = custom(**{
            "9": node("ETN_SaveImageCache", images=["12", 0], format="PNG"),
            "12": node("ImageScale", image=["8", 0], upscale_method="lanczos", width=48, height=48, crop="disabled"),
            "10": node("ETN_LoadImageCache", id="0badcafe"),
            "11": node("VAEEncode", pixels=["10", 0], vae=["4", 2]),
            "45": node("SplitSigmas", sigmas=["44", 0], step=2),
        })  # fmt: skip
        graph = changed(
            little(graph, server), n40_latent_image=["11", 0], n40_sigmas=["45", 1], n43_sampler_name="euler",
            n44_scheduler="normal", n44_steps=4,
        )  # fmt: skip
        mine = str(uuid.uuid4())
        body = {"prompt": graph, "client_id": "krita", "prompt_id": mine}
        assert client.post("/prompt", json=body).json()["prompt_id"] == mine
        told = heard(listening, mine)
    (made,) = [data for kind, data in told if kind == "executed"]
    assert "PNG" not in kinds(told)
    for image in made["output"]["images"]:
        assert image["source"] == "http"
        with Image.open(io.BytesIO(client.get(f"/api/etn/image/{image['id']}").content)) as found:
            assert found.size == (48, 48)
    again = client.post("/prompt", json=body)
    assert (again.status_code, again.json()["error"]["type"]) == (400, "invalid_prompt_id")
    assert client.post("/queue", json={"delete": [mine]}).status_code == 200


def test_one_of_two_prompts_with_an_id_that_come_at_once_is_drawn(server, client, monkeypatch):
    asked, answers, listed = [], [], comfyui._listed

    async def together(service):
        asked.append(service)
        while len(asked) < 2 and not answers:
            await asyncio.sleep(0.01)
        return await listed(service)

    monkeypatch.setattr(comfyui, "_listed", together)
    body = {"prompt": little(from_prompt(), server), "prompt_id": str(uuid.uuid4())}
    threads = [threading.Thread(target=lambda: answers.append(client.post("/prompt", json=body))) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.status_code for one in answers) == [200, 400]


def test_swarm_gets_pictures_through_its_socket(server, client):
    sampler = node(
        "SwarmKSampler", noise_seed=5, steps=2, cfg=4, sampler_name="euler", scheduler="normal", model=["4", 0],
        positive=["6", 0], negative=["7", 0], latent_image=["5", 0], start_at_step=0, end_at_step=10000, var_seed=9,
        var_seed_strength=0, add_noise="enable", return_with_leftover_noise="disable",
    )  # fmt: skip
    with socket(server, "swarm") as listening:
        listening.send(json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}}))
        saved = node("SwarmSaveImageWS", images=["8", 0], bit_depth="8bit")
        graph = little(from_prompt(), server) | {"3": sampler, "9": saved}
        prompt = client.post("/prompt", json={"prompt": graph, "client_id": "swarm"}).json()["prompt_id"]
        told = heard(listening, prompt)
    places = [place for place, (kind, _) in enumerate(told) if kind == "PNG"]
    assert len(places) == 2
    for place in places:
        assert told[place - 1][1]["max"] == 12345
        assert told[place][1].size == (32, 32)
    assert client.get(f"/history/{prompt}").json()[prompt]["outputs"] == {"9": {}}


def test_a_graph_that_waits_is_taken_out_of_the_queue_and_one_that_is_drawn_is_interrupted(server, client):
    with socket(server) as listening:
        graph = changed(little(from_prompt(), server), n5_batch_size=50, n3_steps=400)
        first, second = (
            client.post("/prompt", json={"prompt": graph, "client_id": "a-client"}).json()["prompt_id"] for _ in "12"
        )
        wait_until(lambda: client.get("/queue").json()["queue_running"])
        queue = client.get("/api/queue").json()
        assert [[one[1] for one in queue[name]] for name in ("queue_running", "queue_pending")] == [[first], [second]]
        assert client.get("/prompt").json() == {"exec_info": {"queue_remaining": 2}}
        client.post("/queue", json={"delete": [second]})
        heard(listening, second)
        client.post("/interrupt", json={"prompt_id": second})
        assert client.get("/queue").json()["queue_running"]
        client.post("/interrupt")
        assert "execution_interrupted" in kinds(heard(listening, first))
    assert ended(client, first)["status"]["status_str"] == "error"


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/view", {"filename": "../../etc/passwd"}), ("/view", {"filename": "pyproject.toml", "subfolder": "../.."}),
        ("/view", {"filename": "../jobs.sqlite", "type": "input"}), ("/view", {"filename": "0" * 20 + ".png"}),
        ("/view", {"filename": "0" * 20 + "_99999x9.png"}), ("/etn/image/..%2f..%2fetc%2fpasswd", {}),
    ],
)  # fmt: skip
def test_names_open_no_paths(client, path, params):
    answer = client.get(path, params=params)
    assert answer.status_code in (404, 422)


def test_graphs_are_refused_by_node_and_wrong_values_by_what_the_folder_draws(server, client):
    graph = little(from_prompt(), server) | {
        "20": node("ImageScale", image=["8", 0], upscale_method="lanczos", width=9000, height=0, crop="disabled")
    }
    for changes, said in (
        ({"n3_scheduler": "karras", "n3_sampler_name": "ddim"}, "node 3 (KSampler)"),
        ({"n5_width": 4096}, "more than the 2048"),
        ({"n9_images": ["3", 0]}, "node 9 (SaveImage)"),
        ({"n9_images": ["20", 0]}, "more than the 8192 pixels"),
    ):
        answer = client.post("/prompt", json={"prompt": changed(graph, **changes)})
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
        assert answer.json()["node_errors"]
    sent = changed(little(from_picture(), server), n10_image="nothing.png")
    answer = client.post("/prompt", json={"prompt": sent})
    assert "no picture 'nothing.png' was sent" in answer.json()["error"]["message"]
    broken = little(from_picture(**{"10": node("ETN_LoadImageBase64", image="no base64!")}), server)
    assert client.post("/prompt", json={"prompt": broken}).status_code == 400
    shifted = changed(graph, n3_model=["20", 0]) | {"20": node("ModelSamplingAuraFlow", model=["4", 0], shift=3)}
    answer = client.post("/prompt", json={"prompt": shifted})
    assert "has no shift of its own" in answer.json()["error"]["message"]
    assert client.post("/prompt", json={}).status_code == 400
    assert client.post("/prompt", content=b"[1]").status_code in (400, 422)


def test_sockets_are_guarded_and_their_messages_bounded(server, serve):
    address = f"{server.url.replace('http', 'ws')}/ws"
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, additional_headers={"Origin": "https://evil.example"})
    there = socket_module.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    with pytest.raises(InvalidStatus, match="421"):
        connect("ws://evil.example/ws", sock=there)
    with socket(server) as listening, pytest.raises(ConnectionClosed):
        listening.send("x" * (1 << 17))
        while True:
            listening.recv(timeout=10)
    keyed = serve(api_keys={"anna": "key"})
    address = f"{keyed.url.replace('http', 'ws')}/api/ws"
    with pytest.raises(InvalidStatus, match="401") as refused:
        connect(address)
    assert b"this server wants a key" in refused.value.response.body
    with connect(address, additional_headers={"Authorization": "Bearer key"}) as listening:
        assert json.loads(listening.recv(timeout=10))["type"] == "status"


def test_a_second_socket_of_a_program_takes_the_place_of_the_first(server):
    with socket(server, "twice") as first:
        first.recv(timeout=10)
        with socket(server, "twice") as second:
            second.recv(timeout=10)
            with pytest.raises(ConnectionClosed):
                first.recv(timeout=10)


def test_pictures_may_be_in_the_graph(server, client):
    data = base64.b64encode(png((32, 32))).decode()
    graph = little(from_picture(**{"10": node("ETN_LoadImageBase64", image=data)}), server)
    prompt = client.post("/api/prompt", json={"prompt": graph}).json()["prompt_id"]
    assert ended(client, prompt)["status"]["completed"]


def test_a_name_as_long_as_a_body_is_refused_at_once(server, client):
    graph = little(from_picture(), server, n10_image=" " * 1_000_000)
    assert "300 characters" in client.post("/prompt", json={"prompt": graph}).text


def test_a_side_that_follows_from_a_narrow_picture_has_a_bound(server):
    (picture,) = server.draw()["pictures"]
    with pytest.raises(RequestRefusedError, match="1000000x8192"):
        server.call(picture_file(server.service, picture["id"], (1_000_000, 8192)))


@pytest.mark.parametrize("grown", [0, 1, 6, 9])
def test_a_mask_grows_as_by_one_wide_filter(grown):
    mask = Image.effect_noise((24, 16), 90)
    assert _grown(mask, grown).tobytes() == mask.filter(ImageFilter.MaxFilter(grown | 1)).tobytes()


def test_scripts_ask_without_a_content_type_and_get_names_and_no_previews(server, client):
    """ComfyUI's own example of a client sends what its library says of any body."""
    graph = changed(little(from_prompt(), server), n3_steps=30)
    with socket(server) as listening:
        body = json.dumps({"prompt": graph, "client_id": "a-client"})
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        prompt = client.post("/prompt", content=body, headers=form).json()["prompt_id"]
        told = heard(listening, prompt)
        assert not {"JPEG", "PNG"} & set(kinds(told))
        assert client.get(f"/history/{prompt}").json()[prompt]["prompt"][2] == graph
        wanted = {"prompt": graph, "client_id": "a-client", "extra_data": {"preview_method": "auto"}}
        told = heard(listening, client.post("/prompt", json=wanted).json()["prompt_id"])
        assert "JPEG" in kinds(told)
    (picture, _) = next(data for kind, data in told if kind == "executed")["output"]["images"]
    saved = PurePosixPath(client.get(f"/api/pictures/{PurePosixPath(picture['filename']).stem}").json()["file"]).name
    assert client.get("/view", params=picture).headers["content-disposition"] == f'filename="{saved}"'
    assert client.post("/prompt", content=b"[]").status_code == 422
    assert client.post("/prompt", content=b"no JSON").status_code == 400


def test_kinds_of_models_are_listed_by_their_folders(server, client):
    assert client.get("/models").json() == ["checkpoints", "loras", "upscale_models"]
    assert client.get("/api/models/checkpoints").json() == list(server.service.catalogue.folders())
    assert client.get("/models/vae").status_code == 404
    assert client.get("/embeddings").json() == client.get("/extensions").json() == []


def test_inputs_are_told_in_the_order_in_which_programs_give_them(client):
    told = client.get("/object_info/KSampler").json()["KSampler"]
    order = "model seed steps cfg sampler_name scheduler positive negative latent_image denoise"
    assert told["input_order"]["required"] == list(told["input"]["required"]) == order.split()


def test_many_files_and_prompts_of_one_client_are_in_the_place_of_its_own(service, monkeypatch):
    monkeypatch.setattr(comfyui_state, "_MOST_FILES", 5)
    state = comfyui_state.ComfyUI(service)
    state.keep_file("one", "cat.png", "its cat")
    for number in range(9):
        state.keep_file("many", f"{number}.png", str(number))
    assert state.file("one", "cat.png") == "its cat"
    assert [state.file("many", f"{number}.png") for number in range(4, 9)] == [None, "5", "6", "7", "8"]
    assert comfyui_state._oldest_of_most({"a": 1, "b": 2, "c": 3}, ["one", "many", "many"]) == "b"
