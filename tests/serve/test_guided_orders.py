"""Guides asked for over HTTP, kind by kind: orders of our own, A1111's units by webuiapi, `generate --server`."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import combinations

import pytest
import webuiapi
from PIL import Image, ImageChops, ImageOps

from olivelike.cli.app import run_command_line
from olivelike.model.guides import GUIDES
from olivelike.runtime.pictures import read_picture_record
from tests.fixtures.little_guides import CONTROL_NAMES, LITTLE, little_guided
from tests.serve.conftest import running

ASKED = {"prompt": "a red circle", "steps": 3, "seed": 7, "width": 32, "height": 32}


@pytest.fixture(scope="module")
def drawing():
    image = Image.new("RGB", (32, 32), "navy")
    image.paste("white", (8, 8, 24, 20))
    return image


@pytest.fixture(scope="module")
def guided(base_settings, tmp_path_factory):
    """A server of the little pipeline with guides of all kinds."""
    gallery = tmp_path_factory.mktemp("guided") / "gallery"
    with running(replace(base_settings, folders=(little_guided(),), gallery=gallery)) as server:
        yield server


@pytest.fixture(scope="module")
def plain(guided):
    """Return the record and the picture that no guide leads."""
    (picture,) = guided.draw()["pictures"]
    with guided.client() as client:
        return picture["record"], Image.open(io.BytesIO(client.get(picture["url"]).content))


@pytest.fixture(scope="module")
def upload(guided, drawing):
    """Return the name of the picture at the server."""
    data = io.BytesIO()
    drawing.save(data, "PNG")
    with guided.client() as client:
        return client.post("/api/uploads", content=data.getvalue()).json()["id"]


@pytest.fixture
def api(guided):
    api = webuiapi.WebUIApi(baseurl=f"{guided.url}/sdapi/v1", sampler="Euler a", steps=3)
    with api.session:
        yield api


def alike(one, other):
    return ImageChops.difference(one.convert("RGB"), other.convert("RGB")).getbbox() is None


def order_of(guide):
    """Return the fields of an order that a kind leads; what stands for a picture is left out."""
    kind, names = GUIDES[guide], LITTLE[guide].names
    if kind.is_prompt:
        return {"ip_adapter_images": [{}], "ip_adapter_scale": 0.6}
    guess = {"control_guess": True} if kind.in_each_step else {}
    return {"controls": [{"net": names[-1], "strength": 0.5, "end": 0.8}], **guess}


DEFAULTS = {"strength": 1.0, "start": 0.0, "preprocessor": "none"}


@pytest.mark.parametrize("guide", GUIDES)
def test_an_order_is_guided_and_its_picture_tells_by_what(guided, plain, upload, guide):
    order = order_of(guide)
    field = next(iter(order))
    asked = [upload if field == "ip_adapter_images" else {"image": upload, **one} for one in order[field]]
    (picture,) = guided.draw(**{**order, field: asked})["pictures"]
    (told,) = picture["record"][field]
    image = told if field == "ip_adapter_images" else told.pop("image")
    assert image["hash"] == upload
    if field == "controls":
        assert told == DEFAULTS | order[field][0]
    others = {name: value for name, value in order.items() if name != field}
    assert {name: picture["record"][name] for name in others} == others
    assert not {"controls", "ip_adapter_images", "ip_adapter_scale"} & plain[0].keys()
    with guided.client() as client:
        assert not alike(Image.open(io.BytesIO(client.get(picture["url"]).content)), plain[1])


def test_what_an_order_can_not_have_is_refused(guided, upload):
    control = {"image": upload, "net": "depth", "end": 0.8}
    with guided.client() as client:
        for wrong, words in (
            ({"controls": [{**control, "image": "none"}]}, "POST /api/uploads"),
            ({"controls": [{**control, "net": "dept"}]}, "did you mean 'depth'"),
            ({"controls": [{**control, "start": 0.9}]}, "from 0.9 to 0.8"),
            ({"controls": [{**control, "image": "0" * 64}]}, "there is no upload"),
            ({"ip_adapter_images": ["none"]}, "POST /api/uploads"),
            ({"ip_adapter_images": ["0" * 64]}, "there is no upload"),
            ({"ip_adapter_scale": 0.5}, "without a picture that is a prompt"),
        ):
            answer = client.post("/api/jobs", json={"prompt": "a", "steps": 3, **wrong})
            assert answer.status_code in (404, 422), answer.text
            assert words in answer.text


MODULES = ["none", "canny", "scribble_xdog", "invert", "threshold", "blur_gaussian"]


def test_a_folders_guides_are_listed(guided, api, server):
    nets = list(CONTROL_NAMES.values())
    with guided.client() as client:
        options = client.get("/api/options").json()
        assert (options["controlnets"], options["ip_adapter"]) == (nets, "ip-adapter")
    assert api.controlnet_version() == 2
    assert api.controlnet_model_list() == [*nets, "ip-adapter"]
    modules = api.controlnet_module_list()
    assert modules[:6] == MODULES
    assert "ip-adapter_clip_h" in modules
    other = webuiapi.WebUIApi(baseurl=f"{server.url}/sdapi/v1")
    with other.session:
        assert (other.controlnet_model_list(), other.controlnet_module_list()) == ([], MODULES)


def test_control_pictures_are_made_of_pictures(server, api, drawing):
    wanted = ImageOps.invert(drawing.convert("RGB"))
    (made,) = api.controlnet_detect([drawing], module="invert").images
    assert alike(made, wanted)
    data = io.BytesIO()
    drawing.save(data, "PNG")
    with server.client() as client:
        sent = client.post("/api/uploads", content=data.getvalue()).json()["id"]
        answer = client.get(f"/api/uploads/{sent}/preprocessed?preprocessor=invert")
        assert answer.headers["content-type"] == "image/png"
        assert alike(Image.open(io.BytesIO(answer.content)), wanted)
        glass, data = Image.new("RGBA", (4, 4), (9, 9, 9, 0)), io.BytesIO()
        glass.paste((9, 9, 9, 255), (0, 0, 2, 4))
        glass.save(data, "PNG")
        mask = client.post("/api/uploads", content=data.getvalue()).json()["id"]
        with Image.open(io.BytesIO(client.get(f"/api/uploads/{mask}/preprocessed?preprocessor=mask").content)) as read:
            assert list(read.tobytes()) == [255, 255, 0, 0] * 4
        for wrong, status, words in (
            (f"{sent}/preprocessed?preprocessor=depth", 422, "there are none, mask, canny"),
            (f"{'0' * 64}/preprocessed?preprocessor=invert", 404, "there is no upload 000000000000"),
            ("x/preprocessed?preprocessor=invert", 422, "upload"),
        ):
            answer = client.get(f"/api/uploads/{wrong}")
            assert (answer.status_code, words in answer.text) == (status, True)
        answer = client.post(
            "/controlnet/detect", json={"controlnet_module": "depth", "controlnet_input_images": ["!"]}
        )
        assert (answer.status_code, "there is no 'depth'" in answer.text) == (422, True)


EDGES = {"model": "edges", "weight": 0.8, "guidance_end": 0.9}
TOLD_OF_EDGES = (
    'ControlNet 0: "Module: none, Model: edges, Weight: 0.8, Guidance Start: 0, Guidance End: 0.9, Control Mode'
)


def unit_of(guide):
    """Return a unit of A1111 for a kind, and what the text of its picture has of it."""
    if GUIDES[guide].is_prompt:
        unit = {"module": "ip-adapter_clip_h", "model": "ip-adapter [00]", "weight": 0.6}
        return unit, 'ControlNet 1: "Module: ip-adapter-auto, Weight: 0.6"'
    name = LITTLE[guide].names[-1]
    return {"model": name}, f"Model: {name}"


@pytest.fixture(scope="module")
def without_units(guided):
    api = webuiapi.WebUIApi(baseurl=f"{guided.url}/sdapi/v1", sampler="Euler a", steps=3)
    with api.session:
        return api.txt2img(**ASKED, alwayson_scripts={}).image


@pytest.mark.parametrize("guide", GUIDES)
def test_a_unit_of_a1111_guides_alone_and_beside_another(api, without_units, drawing, guide):
    given, text = unit_of(guide)
    both, off = [EDGES, given], {"model": "none such", "enabled": False}
    units = [webuiapi.ControlNetUnit(**{"image": drawing, **one}) for one in (*both, off)]
    # The client would put units into a default of its own, and send them again with what comes later.
    result = api.txt2img(**ASKED, controlnet_units=units, alwayson_scripts={})
    assert all(one in result.info["infotexts"][0] for one in (TOLD_OF_EDGES, text))
    alone = [api.txt2img(**ASKED, controlnet_units=[unit], alwayson_scripts={}).image for unit in units[:2]]
    images = [result.image, *alone, without_units]
    assert not any(alike(one, other) for one, other in combinations(images, 2))


def test_a_unit_has_a_mode_and_leads_a_picture_of_a_picture(api, without_units, drawing):
    unit, guessed = (webuiapi.ControlNetUnit(image=drawing, model="edges [12345678]", control_mode=mode)
                     for mode in (0, 2))  # fmt: skip
    images = [api.txt2img(**ASKED, controlnet_units=[one], alwayson_scripts={}).image for one in (unit, guessed)]
    assert not alike(*images)
    more = {"denoising_strength": 0.7, "controlnet_units": [unit], "alwayson_scripts": {}}
    assert not alike(api.img2img(images=[without_units], **ASKED, **more).image, without_units)


def test_thresholds_of_a_unit_lead_as_the_picture_that_they_make(api, guided, drawing):
    pytest.importorskip("cv2")
    faint = drawing.point(lambda value: value // 6)  # It has no edges of the usual thresholds.
    edges = api.controlnet_detect([faint], module="canny", threshold_a=20, threshold_b=60).images[0]
    canny = {"image": faint, "model": "edges", "module": "canny"}
    given = [{**canny, "threshold_a": 20, "threshold_b": 60}, {"image": edges, "model": "edges"}]
    given.append({**canny, "threshold_a": -1, "threshold_b": -1})  # The client has 64 by default.
    units = [webuiapi.ControlNetUnit(**one) for one in given]
    for unit in units:
        api.txt2img(**ASKED, controlnet_units=[unit], alwayson_scripts={})
    with guided.client() as client:
        jobs = client.get("/api/jobs?limit=3").json()["jobs"]
    (usual, by_hand, made) = (job["order"]["controls"][0] for job in jobs)
    assert (usual["preprocessor"], made["preprocessor"]) == ("canny", "none")
    assert made["image"] == by_hand["image"] != usual["image"]  # Uploads are named by their content.


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ({"model": "edges"}, "has no image"),
        ({"image": "!", "module": "openpose"}, "no ControlNet module 'openpose'; there are none, canny, scribble_xdog"),
        ({"image": "!", "control_mode": "My prompt is more important"}, "is not done here"),
        ({"image": "!", "weight": "much"}, "args.0.weight"),
        ({"image": "!", "weight": 11}, "args.0.weight"),
        ({"image": "!", "threshold_a": 256}, "args.0.threshold_a"),
        ({"image": "!", "mask": "!"}, "masks of ControlNet units"),
        (True, "args.0"),
        ({"image": "!", "module": "ip-adapter_face_id"}, "there is no ControlNet module 'ip-adapter_face_id'"),
        ({"image": "!", "module": "ip-adapter-auto", "guidance_end": 0.5}, "leads all steps here"),
        ({"image": "!", "module": "ip-adapter-auto", "model": "other"}, "no IP-Adapter 'other'; there is ip-adapter"),
    ],
)  # fmt: skip
def test_what_a_unit_can_not_be_is_refused(guided, unit, words):
    body = {"prompt": "a", "steps": 2, "alwayson_scripts": {"ControlNet": {"args": [unit]}}}
    with guided.client() as client:
        answer = client.post("/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 422
    assert words in answer.text


@pytest.mark.parametrize(("module", "most"), [("none", 8), ("ip-adapter-auto", 16)])
def test_too_many_units_are_refused_before_a_picture_is_decoded(guided, module, most):
    units = [{"image": "!", "module": module}] * (most + 1)
    with guided.client() as client:
        body = {"prompt": "a", "steps": 2, "alwayson_scripts": {"ControlNet": {"args": units}}}
        answer = client.post("/sdapi/v1/txt2img", json=body)
    assert answer.status_code == 422
    assert f"take at most {most}" in answer.text


def words_of(guide):
    """Return options of the command line for a kind, and what a record tells of control pictures then."""
    if GUIDES[guide].is_prompt:
        return ["--ip-adapter", "{}:0.6"], []
    first, *_, last = LITTLE[guide].names
    words = ["--control", f"{first}={{}}:0.6", "--control", f"{last}={{}}:canny", "--control-end", "0.9"]
    return words, [(first, 0.6, 0.9, "none"), (last, 1.0, 0.9, "canny")]


@pytest.mark.parametrize(
    "guide", [pytest.param(one, marks=[pytest.mark.slow] * (one == "t2i_adapter")) for one in GUIDES]
)
def test_the_command_line_guides_here_and_at_a_server_and_makes_a_picture_again(
    guided, drawing, tmp_path, capsys, guide
):
    file = tmp_path / "shape.png"
    drawing.save(file)
    words, controls = words_of(guide)
    asked = ["a red circle", "--steps", "3", "--seed", "7", *(word.format(file) for word in words)]
    folder = little_guided()
    here = ["generate", str(folder), "--threads", "1"]
    assert run_command_line([*here, *asked, "-o", str(tmp_path / "one.png")]) == 0, capsys.readouterr().err
    record = read_picture_record(tmp_path / "one.png")
    assert [(one.net, one.strength, one.end, one.preprocessor) for one in record.controls] == controls
    is_prompt = GUIDES[guide].is_prompt
    assert [one.name for one in record.ip_adapter_images] == (["shape.png"] if is_prompt else [])
    assert record.ip_adapter_scale == (0.6 if is_prompt else 1)
    again = ["--from", str(tmp_path / "one.png"), "-o", str(tmp_path / "two.png")]
    assert run_command_line([*here, *again]) == 0
    there = ["generate", folder.name, *asked, "--server", guided.url, "-o", str(tmp_path / "three.png")]
    assert run_command_line(there) == 0, capsys.readouterr().err
    pictures = [Image.open(tmp_path / f"{name}.png") for name in ("one", "two", "three")]
    assert alike(pictures[0], pictures[1])
    assert alike(pictures[0], pictures[2])
    told = json.loads(pictures[2].text["olivelike"])
    images = told["ip_adapter_images"] if is_prompt else [one["image"] for one in told["controls"]]
    assert {one["name"] for one in images} == {"shape.png"}
    file.unlink()
    assert run_command_line([*here, *again]) == 2
    lost = "had shape.png as a prompt, which is" if is_prompt else "was led by shape.png, which is"
    assert f"{lost} not in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--control-canny"], "are about a --control; give one"),
        (["--ip-adapter", ":0.5"], "no picture is named"),
        (["--ip-adapter", "a.png:1", "--ip-adapter", "b.png:2"], "there is one scale for all"),
    ],
)
def test_what_the_command_line_can_not_ask_for_is_refused(words, said, capsys):
    assert run_command_line(["generate", str(little_guided()), "a", *words]) == 2
    assert said in capsys.readouterr().err
