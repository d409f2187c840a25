"""Pictures as prompts, asked for over HTTP: orders of our own, A1111's units by webuiapi, `generate --server`."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import webuiapi
from PIL import Image, ImageChops

from olivelike.cli.app import run_command_line
from olivelike.runtime.pictures import read_picture_record
from tests.fixtures.little_ip_adapters import little_prompted
from tests.serve.conftest import running


@pytest.fixture(scope="module")
def shown():
    image = Image.new("RGB", (40, 30), "navy")
    image.paste("orange", (8, 8, 24, 20))
    return image


@pytest.fixture(scope="module")
def prompted(base_settings, tmp_path_factory):
    """A server of the little pipeline with an IP-Adapter and the ControlNet `edges`."""
    gallery = tmp_path_factory.mktemp("prompted") / "gallery"
    with running(replace(base_settings, folders=(little_prompted(controlled=True),), gallery=gallery)) as server:
        yield server


def encoded(image):
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def alike(one, other):
    return ImageChops.difference(one.convert("RGB"), other.convert("RGB")).getbbox() is None


def test_an_order_has_pictures_as_prompts_and_its_record_tells_so(prompted, shown):
    with prompted.client() as client:
        assert client.get("/api/options").json()["ip_adapter"] == "ip-adapter"
        upload = client.post("/api/uploads", content=encoded(shown)).json()["id"]
        (picture,) = prompted.draw(ip_adapter_images=[upload], ip_adapter_scale=0.6)["pictures"]
        assert [one["hash"] for one in picture["record"]["ip_adapter_images"]] == [upload]
        assert picture["record"]["ip_adapter_scale"] == 0.6
        plain = prompted.draw()["pictures"][0]
        assert not {"ip_adapter_images", "ip_adapter_scale"} & plain["record"].keys()
        images = [Image.open(io.BytesIO(client.get(one["url"]).content)) for one in (picture, plain)]
        assert not alike(*images)
        for wrong, words in (
            ({"ip_adapter_images": ["none"]}, "POST /api/uploads"),
            ({"ip_adapter_images": ["0" * 64]}, "there is no upload"),
            ({"ip_adapter_scale": 0.5}, "without a picture that it is about"),
        ):
            answer = client.post("/api/jobs", json={"prompt": "a", "steps": 3, **wrong})
            assert answer.status_code in (404, 422), answer.text
            assert words in answer.text


def test_a_unit_of_a1111_is_a_prompt_beside_one_that_leads(prompted, shown):
    api = webuiapi.WebUIApi(baseurl=f"{prompted.url}/sdapi/v1", sampler="Euler a", steps=3)
    with api.session:
        assert api.controlnet_model_list() == ["edges", "ip-adapter"]
        assert "ip-adapter_clip_h" in api.controlnet_module_list()
        asked = {"prompt": "a red circle", "steps": 3, "seed": 7, "width": 32, "height": 32}
        unit = webuiapi.ControlNetUnit(image=shown, module="ip-adapter_clip_h", model="ip-adapter [00]", weight=0.6)
        lead = webuiapi.ControlNetUnit(image=shown.resize((32, 32)), model="edges")
        alone = api.txt2img(**asked, controlnet_units=[unit], alwayson_scripts={})
        both = api.txt2img(**asked, controlnet_units=[lead, unit], alwayson_scripts={})
        plain = api.txt2img(**asked, alwayson_scripts={})
        assert not any(alike(*pair) for pair in ((alone.image, plain.image), (alone.image, both.image)))
        assert 'ControlNet 0: "Module: ip-adapter-auto, Weight: 0.6"' in alone.info["infotexts"][0]
        assert 'ControlNet 1: "Module: ip-adapter-auto' in both.info["infotexts"][0]
    for wrong, words in (
        ({"module": "ip-adapter_face_id"}, "there is no ControlNet module 'ip-adapter_face_id'"),
        ({"module": "ip-adapter-auto", "guidance_end": 0.5}, "leads all steps here"),
        ({"module": "ip-adapter-auto", "model": "other"}, "there is no IP-Adapter 'other'; there is ip-adapter"),
    ):
        unit = {"image": "!", **wrong}
        body = {"prompt": "a", "steps": 2, "alwayson_scripts": {"ControlNet": {"args": [unit]}}}
        with prompted.client() as client:
            answer = client.post("/sdapi/v1/txt2img", json=body)
        assert answer.status_code == 422
        assert words in answer.text


def test_the_command_line_has_it_here_and_at_a_server_and_makes_a_picture_again(prompted, shown, tmp_path, capsys):
    shown.save(tmp_path / "cat.png")
    asked = ["a red circle", "--steps", "3", "--seed", "7", "--ip-adapter", f"{tmp_path / 'cat.png'}:0.6"]
    folder = little_prompted(controlled=True)
    here = ["generate", str(folder), "--threads", "1"]
    assert run_command_line([*here, *asked, "-o", str(tmp_path / "one.png")]) == 0, capsys.readouterr().err
    record = read_picture_record(tmp_path / "one.png")
    assert ([one.name for one in record.ip_adapter_images], record.ip_adapter_scale) == (["cat.png"], 0.6)
    again = ["--from", str(tmp_path / "one.png"), "-o", str(tmp_path / "two.png")]
    assert run_command_line([*here, *again]) == 0
    there = ["generate", folder.name, *asked, "--server", prompted.url, "-o", str(tmp_path / "three.png")]
    assert run_command_line(there) == 0, capsys.readouterr().err
    pictures = [Image.open(tmp_path / f"{name}.png") for name in ("one", "two", "three")]
    assert alike(pictures[0], pictures[1])
    assert alike(pictures[0], pictures[2])
    assert json.loads(pictures[2].text["olivelike"])["ip_adapter_images"][0]["name"] == "cat.png"
    (tmp_path / "cat.png").unlink()
    assert run_command_line([*here, *again]) == 2
    assert "had cat.png as a prompt, which is not in it" in capsys.readouterr().err
    for texts, words in (([":0.5"], "no picture is named"), (["a.png:1", "b.png:2"], "there is one scale for all")):
        assert run_command_line([*here, "a", *(word for text in texts for word in ("--ip-adapter", text))]) == 2
        assert words in capsys.readouterr().err
