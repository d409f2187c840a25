from __future__ import annotations

import io
import json

from PIL import Image


def events_of(client, job, previews=False):
    with client.stream("GET", f"/api/jobs/{job}/events", params={"previews": previews}) as stream:
        return [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]


def test_a_job_is_drawn_and_told_step_by_step(client):
    answer = client.post("/api/jobs", json={"prompt": "a red circle", "steps": 3, "seed": 7})
    assert answer.status_code == 202
    job = answer.json()
    assert (job["state"], job["position"], job["order"]["seed"]) == ("queued", 0, 7)
    told = events_of(client, job["id"], previews=True)
    kinds = [event["type"] for event in told]
    assert kinds[0] == "state"
    assert kinds[-2:] == ["batch", "done"]
    assert any(event.get("preview", "").startswith("data:image/webp;base64,") for event in told)
    done = client.get(f"/api/jobs/{job['id']}").json()
    assert done["state"] == "done"
    (picture,) = done["pictures"]
    data = client.get(picture["url"])
    assert data.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(data.content)) as image:
        assert image.size == (32, 32)
        assert "a red circle" in image.text["parameters"]
