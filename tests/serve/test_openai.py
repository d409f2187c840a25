"""OpenAI's API, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import threading
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from PIL import Image, ImageDraw

from olivelike.serve.api import openai as openai_api
from olivelike.serve.api.refusals import RequestRefusedError
from olivelike.serve.views import ModelView
from tests.fixtures.late import Late
from tests.serve.conftest import wait_until

openai = Late("openai")
FAST = {"num_inference_steps": 2}
LONGER = {"num_inference_steps": 120, "seed": 7}
"""Long enough for previews, at 64x64."""


@pytest.fixture
def api(server):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="anything", max_retries=0, http_client=httpx.Client(verify=False)
    ) as api:
        yield api


def picture_of(entry):
    return Image.open(io.BytesIO(base64.b64decode(entry.b64_json)))


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def square(mode="RGB", color="teal"):
    return png(Image.new(mode, (32, 32), color))


def test_models_are_the_folders(api, service):
    (listed,) = api.models.list().data
    assert (listed.id, listed.object) == (service.current_model, "model")
    assert api.models.retrieve(listed.id).id == listed.id
    with pytest.raises(openai.NotFoundError) as refused:
        api.models.retrieve("another")
    assert refused.value.body["code"] == "model_not_found"


def test_a_prompt_makes_a_picture_with_its_recipe(api):
    answer = api.images.generate(prompt="a red circle", extra_body={**FAST, "seed": 7, "negative_prompt": "blue"})
    assert (answer.size, answer.output_format, answer.background) == ("32x32", "png", "opaque")
    assert answer.usage.input_tokens == answer.usage.total_tokens > 0
    image = picture_of(answer.data[0])
    assert image.size == (32, 32)
    assert "Steps: 2" in image.text["parameters"]
    assert "Negative prompt: blue" in image.text["parameters"]
    again = api.images.generate(prompt="a red circle", extra_body={**FAST, "seed": 7, "negative_prompt": "blue"})
    assert picture_of(again.data[0]).tobytes() == image.tobytes()


def test_all_of_openais_own_fields_are_taken(api):
    answer = api.images.generate(
        prompt="a red circle", model="gpt-image-2", n=2, size="64x32", quality="high", background="opaque",
        moderation="low",
        output_format="jpeg", output_compression=60, style="vivid", user="me", extra_body=FAST,
    )  # fmt: skip
    assert [picture_of(entry).format for entry in answer.data] == ["JPEG", "JPEG"]
    assert picture_of(answer.data[0]).size == (64, 32)
    assert answer.data[0].seed + 1 == answer.data[1].seed


@pytest.mark.parametrize(("form", "kind"), [("png", "PNG"), ("webp", "WEBP"), ("jpeg", "JPEG")])
def test_a_link_leads_to_the_picture(api, form, kind):
    answer = api.images.generate(prompt="a", response_format="url", output_format=form, extra_body=FAST)
    with Image.open(io.BytesIO(httpx.get(answer.data[0].url).content)) as image:
        assert image.format == kind


@pytest.mark.parametrize(
    ("model", "as_url"),
    [("dall-e-2", True), ("dall-e-3", True), ("gpt-image-1", False), ("chatgpt-image-latest", False)],
)
def test_models_of_openais_own_stand_for_the_current_folder(api, model, as_url):
    entry = api.images.generate(prompt="a", model=model, extra_body=FAST).data[0]
    assert (entry.url is not None) == as_url
    assert (entry.b64_json is None) == as_url


def test_a_drawn_choice_is_told_as_the_revised_prompt(api):
    plain, drawn = (api.images.generate(prompt=p, extra_body=FAST).data[0] for p in ("a cat", "a {cat|cat}"))
    assert (plain.revised_prompt, drawn.revised_prompt) == (None, "a cat")


def test_a_stream_shows_the_picture_as_it_grows(api):
    asked = {"prompt": "a red circle", "size": "64x64", "extra_body": LONGER}
    events = list(api.images.generate(**asked, stream=True, partial_images=2))
    *partial, last = events
    assert {event.type for event in partial} == {"image_generation.partial_image"}
    assert [event.partial_image_index for event in partial] == list(range(len(partial)))
    assert 1 <= len(partial) <= 2
    assert last.type == "image_generation.completed"
    assert {picture_of(event).size for event in events} == {(64, 64)}
    assert {event.size for event in events} == {"64x64"}
    assert last.usage.input_tokens_details.text_tokens == last.usage.total_tokens > 0
    whole = api.images.generate(**asked)
    assert picture_of(whole.data[0]).tobytes() == picture_of(last).tobytes()


def test_a_stream_without_partial_pictures_has_the_last_ones_alone(api):
    events = list(api.images.generate(prompt="a", n=2, stream=True, extra_body=FAST))
    assert [event.type for event in events] == ["image_generation.completed"] * 2


def test_an_edit_paints_where_the_mask_is_transparent(api):
    mask = Image.new("RGBA", (32, 32), "black")
    ImageDraw.Draw(mask).rectangle((0, 0, 15, 31), fill=(0, 0, 0, 0))
    answer = api.images.edit(
        image=("a.png", square()), mask=("m.png", png(mask)), prompt="a wall", extra_body={**FAST, "seed": 1}
    )
    image = picture_of(answer.data[0]).convert("RGB")
    assert "Denoising strength: 1" in picture_of(answer.data[0]).text["parameters"]
    assert max(abs(a - b) for a, b in zip(image.getpixel((28, 16)), (0, 128, 128), strict=True)) < 40
    other = api.images.edit(
        image=("a.png", square()), mask=("m.png", png(mask)), prompt="a wall", extra_body={**FAST, "seed": 2}
    )
    left, right = (0, 0, 14, 32), (18, 0, 32, 32)
    changed = picture_of(other.data[0]).convert("RGB")
    assert changed.crop(left).tobytes() != image.crop(left).tobytes()
    assert changed.crop(right).tobytes() == image.crop(right).tobytes()


def test_an_edit_takes_the_pictures_own_transparency_or_none(api):
    clear = Image.new("RGBA", (32, 32), "teal")
    clear.paste((0, 0, 0, 0), (0, 0, 16, 32))
    strengths = []
    for data in (png(clear), square("RGBA"), square()):
        answer = api.images.edit(image=[("a.png", data)], prompt="a wall", extra_body={"num_inference_steps": 4})
        strengths.append("Denoising strength: 1" in picture_of(answer.data[0]).text["parameters"])
    assert strengths == [True, False, False]


def test_edits_stream_too(api):
    events = list(
        api.images.edit(image=("a.png", square()), prompt="b", stream=True, extra_body={"num_inference_steps": 4})
    )
    assert events[-1].type == "image_edit.completed"


def test_an_edit_without_a_size_has_the_pictures_shape_and_the_folders_pixels(api):
    wide = png(Image.new("RGB", (800, 200), "teal"))
    answer = api.images.edit(image=("a.png", wide), prompt="b", size="auto", extra_body={"num_inference_steps": 4})
    assert answer.size == "64x16"


def test_a_variation_stays_near_its_picture(api):
    with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI's own server has it no more.
        answer = api.images.create_variation(image=("a.png", square()), n=2, response_format="b64_json", size="64x64")
    assert len({entry.b64_json for entry in answer.data}) == 2
    assert "Denoising strength: 0.6" in picture_of(answer.data[0]).text["parameters"]
    assert picture_of(answer.data[0]).size == (64, 64)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "painter-of-another"}, 404, "model"),
        ({"n": 11}, 400, "n"),
        ({"n": 0}, 400, "n"),
        ({"size": "big"}, 400, "size"),
        ({"size": "100000x100000"}, 400, None),
        ({"size": "4096x32"}, 400, None),
        ({"output_format": "gif"}, 400, "output_format"),
        ({"output_compression": 101}, 400, "output_compression"),
        ({"partial_images": 4}, 400, "partial_images"),
        ({"background": "transparent"}, 400, "background"),
        ({"extra_body": {"seed": 2**64}}, 400, "seed"),
        ({"extra_body": {"scheduler": "Eular"}}, 400, None),
        ({"extra_body": {"num_inference_steps": 100_000}}, 400, None),
        ({"extra_body": {"steps": 20}}, 400, "num_inference_steps"),
        ({"extra_body": {"cfg_scale": 5}}, 400, "guidance_scale"),
        ({"extra_body": {"width": 64, "height": 64}}, 400, "size"),
        ({"extra_body": {"loras": [{"name": "../../etc/passwd"}]}}, 404, None),
        ({"extra_body": {"loras": "no JSON"}}, 400, "loras"),
        ({"prompt": "<lora:nowhere:1>"}, 404, None),
        ({"prompt": "<lora:nowhere:1> a" + " AND a" * 200}, 404, None),  # Of two mistakes the order's, not the count's.
        ({"prompt": "x" * 40_000}, 400, "prompt"),
    ],
)
def test_what_cant_be_had_is_refused_in_openais_words(api, fields, status, param):
    with pytest.raises(openai.APIStatusError) as refused:
        api.images.generate(**{"prompt": "a", **fields})
    body = refused.value.body
    assert (refused.value.status_code, body["type"]) == (status, "invalid_request_error")
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"]
    assert param is None or body["param"] == param
    assert "Value error" not in body["message"]


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({}, 400),
        ({"image": ("a.png", b"no picture")}, 400),
        ({"image": ("a.png", square()), "image[]": ("b.png", square())}, 400),
        ({"image": ("a.png", square()), "mask": ("m.png", square())}, 400),
        ({"image": ("a.png", square()), "mask": ("m.png", png(Image.new("RGBA", (99, 20))))}, 400),
    ],
)
def test_pictures_that_cant_be_edited_are_refused(client, files, status):
    answer = client.post("/v1/images/edits", data={"prompt": "a"}, files=files or {"other": ("o", b"")})
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_form_in_another_alphabet_is_refused(client):
    body = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n+2AA-\r\n--x--\r\n'
    for charset in ("utf-7", "undefined", "punycode"):
        headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
        assert client.post("/v1/images/edits", content=body, headers=headers).status_code == 400
    assert client.post("/v1/images/edits", json={"prompt": "a"}).status_code == 400


def test_a_full_queue_says_when_to_come_again(api, service, monkeypatch):
    monkeypatch.setattr(service, "settings", replace(service.settings, max_queue=0))
    with pytest.raises(openai.RateLimitError) as refused:
        api.images.generate(prompt="a")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert refused.value.body["code"] == "rate_limit_exceeded"


def test_a_job_whose_client_left_is_cancelled(server, client):
    def newest():
        found = client.get("/api/jobs?limit=1").json()["jobs"][0]
        return found["order"]["prompt"], found["state"]

    asked = {"prompt": "left", "n": 10, "size": "64x64", "num_inference_steps": 500}
    with closing(http.client.HTTPConnection("127.0.0.1", httpx.URL(server.url).port)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/images/generations", json.dumps(asked), headers)
        wait_until(lambda: newest() == ("left", "drawing"))
    wait_until(lambda: newest() == ("left", "cancelled"))


def test_a_stream_whose_client_left_is_cancelled(api, client):
    stream = api.images.generate(
        prompt="left a stream",
        n=10,
        stream=True,
        partial_images=1,
        size="256x256",
        extra_body={"num_inference_steps": 500},
    )
    newest = client.get("/api/jobs?limit=1").json()["jobs"][0]
    assert newest["order"]["prompt"] == "left a stream"
    stream.close()
    wait_until(lambda: client.get(f"/api/jobs/{newest['id']}").json()["state"] == "cancelled")


def test_a_job_that_is_cancelled_by_another_says_so(api, client):
    def cancel():
        wait_until(lambda: client.get("/api/jobs?limit=1").json()["jobs"][0]["order"]["prompt"] == "cancel me")
        client.post(f"/api/jobs/{client.get('/api/jobs?limit=1').json()['jobs'][0]['id']}/cancel")

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(openai.ConflictError) as refused:
        api.images.generate(prompt="cancel me", n=10, size="64x64", extra_body={"num_inference_steps": 500})
    thread.join()
    assert refused.value.body["code"] == "cancelled"


@pytest.mark.parametrize(
    ("asked", "drawn"), [("1024x1024", "64x64"), ("1792x1024", "84x48"), ("64x64", "64x64"), ("128x32", "128x32")]
)
def test_sizes_that_programs_have_built_in_are_taken_to_four_times_the_folders_area(api, asked, drawn):
    answer = api.images.generate(prompt="a", size=asked, extra_body=FAST)
    assert answer.size == drawn
    assert picture_of(answer.data[0]).size == tuple(map(int, drawn.split("x")))


def test_an_edit_of_a_built_in_size_is_bounded_too(api):
    answer = api.images.edit(image=("a.png", square()), prompt="a", size="1024x1024", extra_body=FAST)
    assert answer.size == "64x64"


@pytest.mark.parametrize(
    ("most", "sent", "mask", "expected"),
    [
        (10, 1, False, (None, ("0",))),
        (10, 3, False, (None, ("0", "1", "2"))),
        (10, 2, True, ("0", ("1",))),
        (0, 1, False, ("0", ())),
        (0, 1, True, ("0", ())),
        (0, 2, False, None),
        (1, 2, False, None),
    ],
)
def test_pictures_to_edit_are_seen_by_what_sees_some(monkeypatch, most, sent, mask, expected):
    chosen = ModelView.model_construct(name="klein", most_references=most, default_size=(32, 32), size_unit=16)
    monkeypatch.setattr(openai_api, "_chosen", lambda *_: chosen)
    kept = []

    async def upload(data, _client):
        kept.append(data)
        return SimpleNamespace(id=f"{len(kept) - 1:064x}")

    wanted = openai_api.Prompted(prompt="a cat")
    files = {"image[]": [square()] * sent, "mask": [square("RGBA", (0, 0, 0, 0))] if mask else []}
    made = openai_api._from_picture(SimpleNamespace(upload=upload), wanted, files, "anna")
    if expected is None:
        with pytest.raises(RequestRefusedError, match=f"{sent} pictures were sent as files; klein starts from one"):
            asyncio.run(made)
        return
    order = asyncio.run(made)
    names = {f"{number:064x}": str(number) for number in range(9)}
    assert (names.get(order.init_image), tuple(names[one] for one in order.references)) == expected
    assert (order.mask is not None) == mask
