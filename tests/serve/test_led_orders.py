"""Pictures that lead, asked for over HTTP: orders of our own, A1111's units by webuiapi, `generate --server`."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import webuiapi
from PIL import Image, ImageChops

from olivelike.cli.app import run_command_line
from olivelike.runtime.pictures import read_picture_record
from tests.fixtures.little_controlnets import little_controlled
from tests.fixtures.little_t2i_adapters import little_adapted
from tests.serve.conftest import running


@pytest.fixture(scope="module")
def drawing():
    image = Image.new("RGB", (32, 32))
    image.paste("white", (8, 8, 24, 20))
    return image


@pytest.fixture(scope="module")
def led(base_settings, tmp_path_factory):
    """A server of the little pipeline with the ControlNets `edges` and `depth`."""
    gallery = tmp_path_factory.mktemp("led") / "gallery"
    with running(replace(base_settings, folders=(little_controlled(),), gallery=gallery)) as server:
        yield server


@pytest.fixture
def api(led):
    api = webuiapi.WebUIApi(baseurl=f"{led.url}/sdapi/v1", sampler="Euler a", steps=3)
    with api.session:
        yield api


def encoded(image):
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def alike(one, other):
    return ImageChops.difference(one.convert("RGB"), other.convert("RGB")).getbbox() is None


def test_an_order_is_led_and_its_picture_tells_by_what(led, drawing):
    with led.client() as client:
        assert client.get("/api/options").json()["controlnets"] == ["edges", "depth"]
        upload = client.post("/api/uploads", content=encoded(drawing)).json()["id"]
        control = {"image": upload, "net": "depth", "strength": 0.5, "end": 0.8}
        made = led.draw(controls=[control], control_guess=True)
        (picture,) = made["pictures"]
        (told,) = picture["record"]["controls"]
        assert told["image"]["hash"] == upload
        assert {name: told[name] for name in ("net", "strength", "start", "end", "preprocessor")} == {
            "net": "depth", "strength": 0.5, "start": 0.0, "end": 0.8, "preprocessor": "none",
        }  # fmt: skip
        assert picture["record"]["control_guess"] is True
        plain = led.draw()["pictures"][0]
        images = [Image.open(io.BytesIO(client.get(one["url"]).content)) for one in (picture, plain)]
        assert not alike(*images)
        for wrong, words in (
            ({**control, "image": "none"}, "POST /api/uploads"),
            ({**control, "net": "dept"}, "did you mean 'depth'"),
            ({**control, "start": 0.9}, "from 0.9 to 0.8"),
            ({**control, "image": "0" * 64}, "there is no upload"),
        ):
            answer = client.post("/api/jobs", json={"prompt": "a", "steps": 3, "controls": [wrong]})
            assert answer.status_code in (404, 422), answer.text
            assert words in answer.text


def test_a_unit_of_a1111_leads(api, drawing):
    assert api.controlnet_model_list() == ["edges", "depth"]
    assert api.controlnet_module_list() == ["none", "canny"]
    assert api.controlnet_version() == 2
    asked = {"prompt": "a red circle", "steps": 3, "seed": 7, "width": 32, "height": 32}
    unit = webuiapi.ControlNetUnit(image=drawing, model="edges", weight=0.8, guidance_end=0.9)
    off = webuiapi.ControlNetUnit(image=drawing, model="none such", enabled=False)
    # The client would put units into a default of its own, and send them again with what comes later.
    result = api.txt2img(**asked, controlnet_units=[unit, off], alwayson_scripts={})
    plain = api.txt2img(**asked, alwayson_scripts={})
    assert not alike(result.image, plain.image)
    settings = "Module: none, Model: edges, Weight: 0.8, Guidance Start: 0, Guidance End: 0.9, Control Mode: Balanced"
    assert f'ControlNet 0: "{settings}"' in result.info["infotexts"][0]
    guessed = webuiapi.ControlNetUnit(image=drawing, model="edges [12345678]", control_mode=1)
    assert not alike(api.txt2img(**asked, controlnet_units=[guessed], alwayson_scripts={}).image, result.image)
    more = {"denoising_strength": 0.7, "controlnet_units": [unit], "alwayson_scripts": {}}
    again = api.img2img(images=[plain.image], **asked, **more)
    assert not alike(again.image, plain.image)


def test_t2i_adapters_lead_orders_and_units_too(base_settings, tmp_path_factory, drawing):
    gallery = tmp_path_factory.mktemp("adapted") / "gallery"
    with running(replace(base_settings, folders=(little_adapted(controlled=True),), gallery=gallery)) as server:
        with server.client() as client:
            assert client.get("/api/options").json()["controlnets"] == ["edges", "sketch", "colour"]
            upload = client.post("/api/uploads", content=encoded(drawing)).json()["id"]
        (picture,) = server.draw(controls=[{"image": upload, "net": "colour", "end": 0.8}])["pictures"]
        assert picture["record"]["controls"][0]["net"] == "colour"
        api = webuiapi.WebUIApi(baseurl=f"{server.url}/sdapi/v1", sampler="Euler a", steps=3)
        with api.session:
            assert api.controlnet_model_list() == ["edges", "sketch", "colour"]
            asked = {"prompt": "a red circle", "steps": 3, "seed": 7, "width": 32, "height": 32}
            units = [webuiapi.ControlNetUnit(image=drawing, model=name) for name in ("edges", "sketch")]
            results = [api.txt2img(**asked, controlnet_units=units[:count], alwayson_scripts={}) for count in range(3)]
        assert not alike(results[0].image, results[1].image)
        assert not alike(results[1].image, results[2].image)
        assert "Model: sketch" in results[2].info["infotexts"][0]


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ({"model": "edges"}, "has no image"),
        ({"image": "!", "module": "openpose"}, "no ControlNet module 'openpose'; there are none, canny"),
        ({"image": "!", "control_mode": "ControlNet is more important"}, "is not done here"),
        ({"image": "!", "weight": "much"}, "args.0.weight"),
        ({"image": "!", "weight": 11}, "args.0.weight"),
        ({"image": "!", "mask": "!"}, "masks of ControlNet units"),
        (True, "args.0"),
    ],
)  # fmt: skip
def test_what_a_unit_can_not_be_is_refused(led, unit, words):
    body = {"prompt": "a", "steps": 2, "alwayson_scripts": {"ControlNet": {"args": [unit]}}}
    with led.client() as client:
        answer = client.post("/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 422
    assert words in answer.text


@pytest.mark.parametrize(("module", "most"), [("none", 8), ("ip-adapter-auto", 16)])
def test_too_many_units_are_refused_before_a_picture_is_decoded(led, module, most):
    units = [{"image": "!", "module": module}] * (most + 1)
    with led.client() as client:
        body = {"prompt": "a", "steps": 2, "alwayson_scripts": {"ControlNet": {"args": units}}}
        answer = client.post("/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 422
    assert f"take at most {most}" in answer.text


def test_the_command_line_leads_here_and_at_a_server_and_makes_a_picture_again(led, drawing, tmp_path, capsys):
    drawing.save(tmp_path / "edges.png")
    asked = ["a red circle", "--steps", "3", "--seed", "7", "--control", f"edges={tmp_path / 'edges.png'}:0.6"]
    asked += ["--control", f"depth={tmp_path / 'edges.png'}:canny", "--control-end", "0.9"]
    folder = little_controlled()
    here = ["generate", str(folder), "--threads", "1"]
    assert run_command_line([*here, *asked, "-o", str(tmp_path / "one.png")]) == 0, capsys.readouterr().err
    record = read_picture_record(tmp_path / "one.png")
    assert [(one.net, one.strength, one.end, one.preprocessor) for one in record.controls] == [
        ("edges", 0.6, 0.9, "none"), ("depth", 1.0, 0.9, "canny"),
    ]  # fmt: skip
    again = ["--from", str(tmp_path / "one.png"), "-o", str(tmp_path / "two.png")]
    assert run_command_line([*here, *again]) == 0
    there = ["generate", folder.name, *asked, "--server", led.url, "-o", str(tmp_path / "three.png")]
    assert run_command_line(there) == 0, capsys.readouterr().err
    pictures = [Image.open(tmp_path / f"{name}.png") for name in ("one", "two", "three")]
    assert alike(pictures[0], pictures[1])
    assert alike(pictures[0], pictures[2])
    told = json.loads(pictures[2].text["olivelike"])
    assert told["controls"][0]["image"]["name"] == "edges.png"
    (tmp_path / "edges.png").unlink()
    assert run_command_line([*here, *again]) == 2
    assert "was led by edges.png, which is not in it" in capsys.readouterr().err
    assert run_command_line([*here, "a", "--control-canny"]) == 2
    assert "are about a --control; give one" in capsys.readouterr().err
