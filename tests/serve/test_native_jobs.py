from __future__ import annotations

import errno
import io
import json
import time

import pytest
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from olivelike.runtime.pictures.picture_reading import read_picture_data
from tests.serve.conftest import LONG, SMALL, wait_until


def events_of(client, job, previews=False, once_told=lambda: None):
    with client.stream("GET", f"/api/jobs/{job}/events", params={"previews": previews}) as stream:
        told = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        first = next(told)
        once_told()
        return [first, *told]


def submit(client, **order):
    answer = client.post("/api/jobs", json={**SMALL, **order})
    assert answer.status_code == 202, answer.text
    return answer.json()


def png(size=(32, 32), colour="teal", hole=None):
    image = Image.new("RGB", size, colour)
    if hole is not None:
        ImageDraw.Draw(image).rectangle(hole, fill="white")
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def upload(client, data):
    answer = client.post("/api/uploads", content=data)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def opened(client, picture):
    return Image.open(io.BytesIO(client.get(picture["url"]).content))


def test_a_job_is_drawn_and_told_step_by_step(client):
    before = submit(client, **LONG)["id"]  # So that we listen before ours begins.
    job = submit(client, steps=200)  # Of fewer a busy machine may have drawn all before the first preview.
    assert (job["state"], job["order"]["seed"]) == ("queued", 7)
    told = events_of(client, job["id"], True, lambda: client.post(f"/api/jobs/{before}/cancel"))
    kinds = [event["type"] for event in told]
    assert kinds[0] == "state"
    assert kinds[-3:] == ["picture", "batch", "done"]
    assert "step" in kinds
    steps = [event for event in told if event["type"] == "step"]
    assert steps[-1]["step"] == steps[-1]["steps"] >= 200
    previews = [step["preview"] for step in steps if "preview" in step]
    assert previews
    assert all(preview.startswith("data:image/webp;base64,") for preview in previews)
    done = client.get(f"/api/jobs/{job['id']}").json()
    assert (done["state"], done["step"], done["steps_total"], done["batch"]) == ("done", 200, 200, 1)
    (picture,) = done["pictures"]
    data = client.get(picture["url"])
    assert data.headers["content-type"] == "image/png"
    found = read_picture_data(data.content, "it")
    assert (found.width, found.record.seed, found.record.prompt) == (32, 7, "a red circle")
    assert picture["record"]["seed"] == 7
    assert events_of(client, job["id"])[-1]["type"] == "done", "who comes late hears of the end"


def test_the_same_order_gives_the_same_picture_and_another_file(server, client):
    first, second = (server.draw(seed=11)["pictures"][0] for _ in range(2))
    assert first["id"] != second["id"]
    assert opened(client, first).tobytes() == opened(client, second).tobytes()


def test_a_seed_that_is_left_open_is_fixed_before_the_job_is_queued(server):
    job = server.draw(seed=-1, num_images=2)
    assert [picture["seed"] for picture in job["pictures"]] == [job["order"]["seed"], job["order"]["seed"] + 1]


def test_a_plot_draws_every_combination_and_one_sheet(server, client):
    job = server.draw(
        x={"field": "steps", "values": [1, 2]}, y={"field": "prompt_sr", "values": ["red", "blue", "green"]}
    )
    assert job["state"] == "done", job["error"]
    records = [picture["record"] for picture in job["pictures"]]
    assert [(record["steps"], record["prompt"]) for record in records] == [
        (steps, f"a {colour} circle") for colour in ("red", "blue", "green") for steps in (1, 2)
    ]
    sheet = opened(client, job["sheet"])
    assert sheet.width > 2 * 128
    assert sheet.height > 3 * 32
    assert job["sheet"]["id"] not in {one["id"] for one in client.get("/api/pictures?limit=3").json()["pictures"]}


def test_several_initial_pictures_are_drawn_one_after_the_other_each_with_its_own_name(server, client):
    sent = [client.post("/api/uploads", content=png((40, 24 + 8 * more))).json()["id"] for more in range(3)]
    job = server.draw(init_images=sent, strength=0.5, seed=7, num_images=2, width=None, height=None, fit=True)
    assert job["state"] == "done", job["error"]
    told = [(one["record"]["init_image"]["hash"], one["seed"], one["height"]) for one in job["pictures"]]
    alone = [server.draw(init_image=one, strength=0.5, seed=7, width=None, height=None, fit=True) for one in sent]
    alone = [one["pictures"][0] for one in alone]
    assert told == [(sent[place], seed, alone[place]["height"]) for place in range(3) for seed in (7, 8)]
    for one, many in zip(alone, job["pictures"][::2], strict=True):
        assert opened(client, one).tobytes() == opened(client, many).tobytes()


def test_a_cancelled_plot_leaves_the_grid_so_far(server, client):
    job = submit(client, x={"field": "steps", "values": [1, 400]})["id"]
    wait_until(lambda: client.get(f"/api/jobs/{job}").json()["pictures"])
    client.post(f"/api/jobs/{job}/cancel")
    done = server.wait(job)
    assert (done["state"], len(done["pictures"])) == ("cancelled", 1)
    assert opened(client, done["sheet"]).width > 2 * 128
    assert 'X Values: "1, 400"' in done["sheet"]["parameters"]


def test_a_prompt_matrix_comes_on_a_grid(server, client):
    job = server.draw(prompt="a circle|red|big", prompt_matrix={})
    assert [picture["record"]["prompt"] for picture in job["pictures"]] == [
        "a circle", "a circle, red", "a circle, big", "a circle, red, big",
    ]  # fmt: skip
    assert job["sheet"]["parameters"].startswith("a circle|red|big\n")
    assert "Script: Prompt matrix" in job["sheet"]["parameters"]


def test_an_order_that_says_nothing_of_a_sheet_is_done_without_one(server):
    job = server.draw(num_images=2)
    assert (job["state"], job["error"], job["sheet"]) == ("done", None, None)


def test_pictures_of_a_job_come_on_one_sheet_when_asked(server, client):
    job = server.draw(num_images=3, batch_size=2, sheet=True)
    assert len(job["pictures"]) == 3
    assert opened(client, job["sheet"]).format == "PNG"


def test_pictures_that_are_deleted_meanwhile_are_not_on_the_sheet(server, client):
    job = submit(client, steps=80, x={"field": "size", "values": ["32x32", "192x192", "64x64"]})["id"]
    wait_until(lambda: client.get(f"/api/jobs/{job}").json()["pictures"])
    picture = client.get(f"/api/jobs/{job}").json()["pictures"][0]["id"]
    assert client.delete(f"/api/pictures/{picture}").status_code == 204
    wait_until(lambda: client.get(f"/api/jobs/{job}").json()["batch"] == 2)
    client.post(f"/api/jobs/{job}/skip")
    done = server.wait(job)
    assert (done["state"], len(done["pictures"])) == ("done", 1), done["error"]
    sheet = opened(client, done["sheet"]).convert("RGB")
    assert sheet.getpixel((9, sheet.height - 30)) == (232, 232, 232), "its cell is empty"


@pytest.mark.parametrize(
    ("order", "status", "message"),
    [
        ({"steps": 501}, 422, "501 steps are more"),
        ({"init_image": "abc"}, 422, "POST /api/uploads"),
        ({"size": "64x64"}, 422, "`width` and `height`"),
        ({"width": 4096, "height": 32}, 422, "4096 pixels"),
        ({"width": 33, "height": 33}, 422, "multiples of"),
        ({"width": 32}, 422, "one side alone"),
        ({"num_images": 60, "x": {"field": "seed", "values": [1, 2]}}, 422, "120 pictures"),
        ({"model": "painter"}, 404, "no model 'painter'"),
        ({"model": "../../etc"}, 404, "no model"),
        ({"scheduler": "Oiler"}, 422, "no sampler 'Oiler'"),
        ({"loras": [{"name": "none"}]}, 404, "there is no LoRA"),
        ({"prompt": "a <lora:none:1>"}, 404, "there is no LoRA"),
        ({"init_image": "0" * 64}, 404, "there is no upload"),
        ({"init_image": "../secret"}, 422, "init_image"),
        ({"strength": 0.5}, 422, "without an initial picture"),
        ({"guidance_scale": "many"}, 422, "guidance_scale"),
        ({"unknown": 1}, 422, "unknown"),
        ({"clip_layer": 50}, 422, "leaves no layer"),
        ({"prompt": "(" * 30_000}, 422, "prompt"),
    ],
)
def test_what_can_not_be_had_is_refused_before_it_is_queued(client, order, status, message):
    answer = client.post("/api/jobs", json={**SMALL, **order})
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_an_order_that_finds_nothing_to_wait_for_is_begun_as_it_is_planned_and_numbers_have_no_gaps(
    server, client, monkeypatch
):
    asked, painter, gallery = [], server.service.painter, server.service.gallery
    reserve = gallery.reserve  # It may look through thousands of files, and nobody waits for that.
    monkeypatch.setattr(gallery, "reserve", lambda **held: (asked.append({"do": "reserve"}), reserve(**held))[1])
    child = painter.start()
    send, child.send = child.send, lambda message: (asked.append(message), send(message))
    try:
        (first,) = server.draw()["pictures"]
        assert client.post("/api/jobs", json={**SMALL, "scheduler": "none"}).status_code == 422
        (second,) = server.draw()["pictures"]
    finally:
        child.send = send
    done = [message["do"] for message in asked if message["do"] != "previews"]
    assert done == ["plan", "reserve", "keep", "plan", "reserve", "plan", "reserve", "keep"]
    paths = [server.service.gallery.find(one["id"]).path.rpartition("/")[2] for one in (first, second)]
    assert int(paths[1][:5]) == int(paths[0][:5]) + 1


def test_a_job_of_the_queue_is_begun_before_its_number_is_looked_for_and_none_is_drawn_without_one(
    server, client, monkeypatch
):
    asked, painter, gallery = [], server.service.painter, server.service.gallery
    reserve = gallery.reserve

    def look(**held):
        asked.append("reserve")
        if asked.count("reserve") == 2:
            time.sleep(0.3)  # In the meantime it is drawn; where it takes longer, this can't fail.
            raise OSError(errno.EACCES, "no leave")
        return reserve(**held)

    long = client.post("/api/jobs", json=LONG).json()["id"]
    waiting = [client.post("/api/jobs", json={**SMALL, "seed": seed}).json()["id"] for seed in (41, 42, 43)]
    before = {*gallery.folder.rglob("*.png")}
    child = painter.start()
    send = child.send
    monkeypatch.setattr(gallery, "reserve", look)
    monkeypatch.setattr(child, "send", lambda message: (asked.append(message["do"]), send(message)))
    client.post(f"/api/jobs/{long}/cancel")
    first, failed, last = map(server.wait, waiting)
    assert asked == ["cancel", "draw", "reserve", "keep", "draw", "reserve", "cancel", "draw", "reserve", "keep"]
    assert (first["state"], failed["state"], last["state"]) == ("done", "failed", "done")
    assert failed["error"]["message"].startswith("the gallery can't be written: [Errno 13] no leave")
    new = sorted(path.name for path in {*gallery.folder.rglob("*.png")} - before)
    assert [name[6:] for name in new] == ["41.png", "43.png"]


def test_a_job_that_is_begun_and_not_written_down_leaves_no_picture(server, client, monkeypatch):
    server.draw()
    before = [*server.service.gallery.folder.rglob("*.png")]

    def refuse(_: object) -> None:
        time.sleep(0.3)  # In the meantime it is drawn; where it takes longer, this can't fail.
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as full:
        full.setattr(server.service.journal, "add", refuse)
        assert client.post("/api/jobs", json={**SMALL, "seed": 123}).status_code == 507
    (picture,) = server.draw()["pictures"]
    (new,) = {*server.service.gallery.folder.rglob("*.png")} - {*before}
    assert server.service.gallery.find(picture["id"]).path.endswith(new.name)


def test_a_job_that_is_begun_and_cancelled_before_its_turn_is_not_drawn_on(server, client):
    dispatcher, push = server.service.dispatcher, server.service.dispatcher.push
    order = {**SMALL, "steps": 500, "num_images": 50}

    def push_and_cancel(job, client):
        push(job, client)
        assert dispatcher.is_ahead(job)
        assert dispatcher.cancel(job)

    dispatcher.push = push_and_cancel
    try:
        job = submit(client, **order)["id"]
    finally:
        dispatcher.push = push
    assert client.get(f"/api/jobs/{job}").json()["state"] == "cancelled"
    assert server.draw()["state"] == "done"
    assert client.get(f"/api/jobs/{job}").json()["pictures"] == []


def test_a_job_that_runs_is_cancelled_and_the_next_is_drawn(server, client):
    long, short = submit(client, steps=500, num_images=50), submit(client)
    assert short["position"] is not None
    wait_until(lambda: client.get(f"/api/jobs/{long['id']}").json()["step"] > 0)
    client.post(f"/api/jobs/{long['id']}/cancel")
    assert server.wait(long["id"])["state"] == "cancelled"
    assert server.wait(short["id"])["state"] == "done"
    again = client.post(f"/api/jobs/{long['id']}/cancel")
    assert (again.status_code, "ended already" in again.text) == (409, True)


def test_a_job_that_waits_is_cancelled_and_the_others_move_up(server, client):
    long = submit(client, steps=500, num_images=50)
    waiting = [submit(client) for _ in range(3)]
    wait_until(lambda: client.get(f"/api/jobs/{long['id']}").json()["state"] == "drawing")
    places = [client.get(f"/api/jobs/{job['id']}").json()["position"] for job in waiting]
    assert places == [0, 1, 2]
    assert client.post(f"/api/jobs/{waiting[0]['id']}/cancel").json()["state"] == "cancelled"
    assert client.get(f"/api/jobs/{waiting[1]['id']}").json()["position"] == 0
    client.post(f"/api/jobs/{long['id']}/cancel")
    assert [server.wait(job["id"])["state"] for job in waiting] == ["cancelled", "done", "done"]


def test_a_job_that_waits_is_moved_and_one_that_ended_is_not(server, client):
    first = submit(client, steps=500, num_images=50)
    wait_until(lambda: client.get(f"/api/jobs/{first['id']}").json()["state"] == "drawing")
    others = [submit(client), submit(client, seed=8)]
    for job, places in ((others[1], -1), (others[0], 1)):
        moved = client.post(f"/api/jobs/{job['id']}/move", json={"places": places})
        assert moved.status_code == 200, moved.text
    assert [client.get(f"/api/jobs/{job['id']}").json()["position"] for job in others] == [1, 0]
    assert client.post(f"/api/jobs/{others[0]['id']}/move", json={"places": "up"}).status_code == 422
    for job in (*others, first):
        client.post(f"/api/jobs/{job['id']}/cancel")
    assert client.post(f"/api/jobs/{others[0]['id']}/move", json={"places": 1}).status_code == 409
    server.wait(first["id"])


def test_a_batch_is_skipped_and_the_rest_is_drawn(server, client):
    job = submit(client, steps=80, x={"field": "size", "values": ["192x192", "32x32"]})["id"]
    wait_until(lambda: client.get(f"/api/jobs/{job}").json()["step"] > 0)
    client.post(f"/api/jobs/{job}/skip")
    done = server.wait(job)
    assert (done["state"], [picture["width"] for picture in done["pictures"]]) == ("done", [32])


@pytest.mark.parametrize("path", ["/api/jobs", "/v1/images/generations", "/sdapi/v1/txt2img"])
def test_a_body_that_does_not_say_that_it_is_json_is_told_so(client, path):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post(path, content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code in (400, 422)
    assert "send it with Content-Type: application/json" in answer.text


def test_jobs_that_there_are_not_are_not_found(client):
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/skip")):
        assert client.request(method, f"/api/jobs/nothing{path}").status_code == 404


def test_a_picture_is_drawn_from_an_upload(server, client):
    used = upload(client, png())
    job = server.draw(init_image=used, strength=0.7)
    assert job["state"] == "done", job["error"]
    assert job["pictures"][0]["record"]["init_image"]["hash"] == used


def test_each_of_several_initial_pictures_is_filled_where_one_mask_says(server, client):
    sent = [upload(client, png(colour=colour)) for colour in ("teal", "orange")]
    mask = upload(client, png(colour="black", hole=(0, 0, 15, 31)))
    more = {"mask": mask, "mask_mode": "not masked", "masked_content": "fill", "strength": 0.5, "seed": 7}
    job = server.draw(init_images=sent, **more)
    assert job["state"] == "done", job["error"]
    for one, many in zip(sent, job["pictures"], strict=True):
        (alone,) = server.draw(init_image=one, **more)["pictures"]
        assert opened(client, alone).tobytes() == opened(client, many).tobytes()
        assert (many["record"]["masked_content"], many["record"]["mask_mode"]) == ("fill", "not masked")


def test_what_is_not_masked_stays_when_the_picture_is_put_back(server, client):
    image, mask = upload(client, png()), upload(client, png(colour="black", hole=(0, 0, 15, 31)))
    job = server.draw(init_image=image, mask=mask, mask_blur=0)
    drawn = opened(client, job["pictures"][0])
    assert drawn.getpixel((31, 5)) == (0, 128, 128)
    assert drawn.getpixel((2, 5)) != (0, 128, 128)


def test_only_what_is_around_a_mask_is_drawn_and_put_back(server, client):
    image = upload(client, png((128, 96)))
    mask = upload(client, png((128, 96), "black", (100, 40, 110, 50)))
    job = server.draw(init_image=image, mask=mask, inpaint_area="masked", inpaint_padding=4, width=32, height=32)
    assert job["state"] == "done", job["error"]
    drawn = opened(client, job["pictures"][0])
    assert drawn.size == (128, 96)
    assert drawn.getpixel((105, 45)) != (0, 128, 128)
    assert {drawn.getpixel(place) for place in ((0, 0), (97, 45), (127, 95))} == {(0, 128, 128)}
    black = upload(client, png((128, 96), "black"))
    refused = client.post("/api/jobs", json={**SMALL, "init_image": image, "mask": black, "inpaint_area": "masked"})
    assert (refused.status_code, "black all over" in refused.text) == (422, True)


def test_uploads_tell_what_made_them_and_others_are_refused(server, client):
    picture = server.draw()["pictures"][0]
    found = client.post("/api/uploads", content=client.get(picture["url"]).content).json()
    assert found["record"] == {**picture["record"], "scheduler": "PNDM"}  # As the lists have it.
    assert found["parameters"] == picture["parameters"]
    for data in (b"", b"no picture", png()[:50]):
        assert client.post("/api/uploads", content=data).status_code == 422


@pytest.mark.parametrize("where", ['"loras":[%s]', '"x":{"field":"seed","values":[%s]}'])
def test_a_body_of_many_wrong_values_is_refused_at_the_first_ones(client, where):
    for number, status in ((40_000, 422), (200_000, 413)):
        body = '{"prompt":"a",' + where % ",".join(["{}"] * number) + "}"
        answer = client.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status
        assert len(answer.content) < 1000


A1111_TEXT = "a blue star\nSteps: 2, Sampler: Euler, CFG scale: 6, Seed: 18446744073709551615, Size: 32x32"


def test_recipes_are_read_from_pasted_texts_and_uploads_with_what_the_page_leaves_out(client):
    def asked(**body):
        return client.post("/api/recipes", json=body)

    found = asked(text=f"{A1111_TEXT}, Tiling: True").json()
    assert (found["record"]["seed"], found["record"]["scheduler"]) == (2**64 - 1, "Euler")
    assert found["left_out"] == "not taken over, so that the picture may be another: Tiling True"
    upscaler = {"name": "x4.onnx"}
    again = asked(record={**found["record"], "upscaler": upscaler, "seed": str(2**64 - 1)}).json()
    assert again["left_out"] == found["left_out"], "upscalers are a field of the form"
    for body, why in (
        ({"text": "a cat"}, "no line of settings"),
        ({"text": '{"3": {"class_type": "KSampler"}}'}, "this is a ComfyUI graph"),
        ({"record": {"seed": 1}}, "damaged"),
        ({}, "give a text, or the record"),
    ):
        refused = asked(**body)
        assert (refused.status_code, why in refused.json()["error"]["message"]) == (422, True), refused.text
    chunks = PngInfo()
    chunks.add_text("parameters", f"{A1111_TEXT}, Tiling: True")
    sent = io.BytesIO()
    Image.new("RGB", (8, 8)).save(sent, "PNG", pnginfo=chunks)
    told = client.post("/api/uploads", content=sent.getvalue()).json()
    assert (told["left_out"], told["unread"]) == (found["left_out"], None)
    assert client.post("/api/uploads", content=png()).json()["unread"] is None


@pytest.mark.parametrize(
    "prompt", ["BREAK " * 3300, "AND " * 4900, "(" * 201, "[a:b:" * 300], ids=lambda text: text[:5]
)
def test_a_prompt_that_can_not_be_drawn_is_refused_as_it_is_asked_for(client, prompt):
    for field in ("prompt", "negative_prompt"):
        if field == "negative_prompt" and "AND" in prompt:
            continue  # There it is a word.
        answer = client.post("/api/jobs", json={**SMALL, field: prompt})
        assert answer.status_code == 422, answer.text
        assert "prompt: " in answer.json()["error"]["message"]
    assert client.post("/api/tokens", json={"text": prompt}).status_code == 422
