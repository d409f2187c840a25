from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from olivelike.runtime.pictures.picture_reading import read_picture_data
from olivelike.runtime.pictures.picture_record import PictureRecord
from olivelike.serve.api import page_routes
from olivelike.serve.catalogue import Catalogue
from olivelike.serve.highlighting import read_tokens
from tests.serve.test_native_jobs import png


def test_pictures_are_found_by_recipe_page_by_page(server, client):
    job = server.draw(prompt="an unmistakable zeppelin", num_images=3, scheduler="Euler Karras", guidance_scale=7.5)
    found = client.get("/api/pictures", params={"search": "Zeppelin", "limit": 2}).json()
    assert [one["seed"] for one in found["pictures"]] == [9, 8]
    older = client.get("/api/pictures", params={"search": "zeppelin", "limit": 2, "before": found["next"]}).json()
    assert ([one["seed"] for one in older["pictures"]], older["next"]) == ([7], None)
    for search, many in (
        ("zeppelin seed:8", 1),
        ("zeppelin size:32x32", 3),
        ("zeppelin steps:3", 3),
        ("zeppelin size:64x64", 0),
        ("zeppelin sampler:euler cfg:7.50", 3),
        ('zeppelin sampler:"Euler a"', 0),
        ("zeppelin cfg:7", 0),
        ("zeppelin schedule:Karras", 3),
        ("zeppelin hires:2", 0),
    ):
        assert len(client.get("/api/pictures", params={"search": search}).json()["pictures"]) == many, search
    assert len(client.get("/api/pictures", params={"search": f"job:{job['id']}"}).json()["pictures"]) == 3


def test_all_that_are_found_are_counted_and_named_however_many_a_page_has(server, client):
    job = server.draw(prompt="a numbered raft", num_images=3, sheet=True)
    first, second, third = (one["id"] for one in job["pictures"])
    client.put(f"/api/pictures/{second}/favourite")
    asked = {"search": "numbered raft", "model": job["pictures"][0]["record"]["model"]}
    page = client.get("/api/pictures", params={**asked, "limit": 1}).json()
    assert page["total"] == 3
    assert client.get("/api/pictures", params={**asked, "before": page["next"]}).json()["total"] is None
    assert client.get("/api/pictures", params={"search": "no such raft"}).json()["total"] == 0
    named = client.get("/api/pictures/ids", params=asked).json()
    assert [(one["id"], one["favourite"]) for one in named] == [(third, False), (second, True), (first, False)]
    answer = client.post("/api/pictures/archive.zip", files={"ids": (None, f"{first},{third}")})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert len(archive.namelist()) == 2
    assert client.post("/api/pictures/archive.zip", files={"ids": (None, "../x")}).status_code == 404
    many, questions = ",".join(f"{number:020x}" for number in range(2000)), []
    server.service.gallery._database.set_trace_callback(questions.append)
    assert client.post("/api/pictures/archive.zip", files={"ids": (None, many)}).status_code == 404
    server.service.gallery._database.set_trace_callback(None)
    assert len(questions) == 1, "others are held up meanwhile"
    client.delete(f"/api/pictures/{second}/favourite")


def found(client, search):
    return [one["id"] for one in client.get("/api/pictures", params={"search": search}).json()["pictures"]]


def test_a_search_excludes_looks_into_the_negative_prompt_and_tells_of_unknown_terms(server, client):
    plain = server.draw(prompt="a winged (red:1.2) otter", negative_prompt="murky water", seed=5)["pictures"][0]["id"]
    wide = server.draw(prompt="a winged blue otter", seed=6, width=64, height=32)["pictures"][0]["id"]
    for search, expected in (
        ("", [wide, plain]), ("-red", [wide]), ('-"blue otter"', [plain]), ("-seed:5", [wide]), ("-steps:3", []),
        ("negative:murky", [plain]), ("-negative:murky", [wide]), ("negative:otter", []), ("-size:64x32", [plain]),
        ("-size:64x64", [wide, plain]), ("-lora:ink -lora:neon", [wide, plain]), ("lora:ink", []),
        ("(red:1.2)", [plain]), ('"red:1.2"', [plain]), ("-kind:sheet", [wide, plain]), ("-kind:picture", []),
        ("seed:5 seed:6", []),
    ):  # fmt: skip
        assert found(client, f"winged {search}") == expected, search
    for search, told in (
        ("foo:bar", "terms: seed, size, "), ("-sead:7", "did you mean 'seed'?"),
        ("red:1.2", 'in quotes if they have a colon, "red:1.2";'),
        ("seed: winged", "seed: has no value; write seed:VALUE"),
    ):  # fmt: skip
        answer = client.get("/api/pictures", params={"search": search})
        assert (answer.status_code, told in answer.json()["error"]["message"]) == (422, True), answer.text


def test_favourites_are_marked_searched_and_kept_in_a_file(server, client):
    liked, other = server.draw(prompt="a favourable wind", num_images=2)["pictures"]
    address = f"/api/pictures/{liked['id']}/favourite"
    assert [client.put(address).status_code for _ in range(2)] == [204, 204]
    assert client.get(f"/api/pictures/{liked['id']}").json()["favourite"] is True
    assert found(client, "favourable favourite:yes") == [liked["id"]]
    assert found(client, "favourable favourite:no") == [other["id"]]
    file = server.service.gallery.folder / "favourites.txt"
    assert file.read_text() == f"{server.service.library.find(liked['id']).path}\n"
    assert client.delete(address).status_code == 204
    assert (found(client, "favourable favourite:yes"), file.read_text()) == ([], "")
    client.put(address)
    client.delete(f"/api/pictures/{liked['id']}")
    assert file.read_text() == "", "the next picture of its name is none"
    assert client.put(address).status_code == 404


def test_pictures_are_found_by_day_flag_and_kind(server, client):
    job = server.draw(prompt="a peculiar lantern", sheet=True)
    picture = job["pictures"][0]
    day = server.service.library.find(picture["id"]).path[:10]
    for search, expected in (
        (f"date:{day}", [picture["id"]]), ("date:2001-01-01", []), ("flagged:no", [picture["id"]]), ("flagged:yes", []),
        ("kind:picture", [picture["id"]]), ("kind:sheet", [job["sheet"]["id"]]), ("lora:style", []),
    ):  # fmt: skip
        assert found(client, f"peculiar {search}") == expected, search
    for search in ("date:today", "flagged:maybe", "kind:none"):
        assert client.get("/api/pictures", params={"search": search}).status_code == 422


def test_chosen_pictures_come_as_one_archive_and_on_one_sheet(server, client):
    pictures = server.draw(num_images=2)["pictures"]
    ids = ",".join(one["id"] for one in pictures)
    answer = client.get("/api/pictures/archive.zip", params={"ids": f"{ids},{'0' * 20}"})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        rows = [server.service.library.find(one["id"]) for one in pictures]
        assert archive.namelist() == [row.path for row in rows] == [one["file"] for one in pictures]
        assert [archive.read(row.path) for row in rows] == [
            server.service.gallery.path(row).read_bytes() for row in rows
        ]
    old = server.service.gallery.path(server.service.library.find(pictures[0]["id"]))
    os.utime(old, (0, 0))  # 1970, and a ZIP's days begin in 1980.
    assert client.get("/api/pictures/archive.zip", params={"ids": ids}).content[:2] == b"PK"
    with Image.open(io.BytesIO(client.get("/api/pictures/sheet.png", params={"ids": ids}).content)) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 2 * 128
    for name in ("archive.zip", "sheet.png"):
        assert client.get(f"/api/pictures/{name}", params={"ids": "0" * 20}).status_code == 404
        assert client.get(f"/api/pictures/{name}", params={"ids": "../x"}).status_code == 422


def test_a_picture_comes_small_and_in_other_formats_with_its_record(server, client):
    picture = server.draw()["pictures"][0]
    with Image.open(io.BytesIO(client.get(picture["thumb"]).content)) as small:
        assert small.format == "WEBP"
    for suffix, form in (("jpg", "JPEG"), ("webp", "WEBP"), ("png", "PNG")):
        answer = client.get(f"/files/{picture['id']}.{suffix}")
        assert answer.headers["content-type"] == f"image/{form.lower()}"
        saved = PurePosixPath(picture["file"]).with_suffix(f".{suffix}").name
        assert answer.headers["content-disposition"] == f'inline; filename="{saved}"'
        found = read_picture_data(answer.content, suffix)
        assert (found.format, found.record.seed) == (form, 7)
    assert client.get(f"/files/{picture['id']}.gif").status_code == 422


def test_a_deleted_picture_is_gone(server, client):
    picture = server.draw()["pictures"][0]
    assert client.get(f"/api/pictures/{picture['id']}").json() == picture
    assert client.delete(f"/api/pictures/{picture['id']}").status_code == 204
    for path in (f"/api/pictures/{picture['id']}", picture["url"], picture["thumb"]):
        assert client.get(path).status_code == 404
    assert client.delete(f"/api/pictures/{picture['id']}").status_code == 404


def test_a_picture_that_vanishes_between_two_looks_is_none(server, client, monkeypatch):
    picture = server.draw(prompt="a vanishing hat")["pictures"][0]
    (server.settings.gallery / picture["file"]).unlink()
    monkeypatch.setattr(type(server.service.gallery), "has_file", lambda *_: True)
    jpeg, sheet = picture["url"].replace("png", "jpg"), f"/api/pictures/sheet.png?ids={picture['id']}"
    for path in (picture["url"], picture["thumb"], jpeg, sheet, f"/view?filename={picture['id']}.png"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "source"), path


def test_a_picture_that_can_not_be_deleted_is_said_to_stay(server, client, monkeypatch):
    picture = server.draw(prompt="a book that is read elsewhere")["pictures"][0]

    def refuse(*_arguments, **_named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "unlink", refuse)
    answer = client.delete(f"/api/pictures/{picture['id']}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "store")
    assert answer.json()["error"]["message"] == "the picture could not be deleted: Permission denied"
    monkeypatch.undo()
    assert client.get(picture["url"]).status_code == 200


def test_programs_that_ask_for_heads_alone_get_them(server, client):
    picture = server.draw(prompt="a head")["pictures"][0]
    for path in ("/healthz", "/readyz", "/", "/page/page.js", "/page/x/page.js", picture["url"], picture["thumb"]):
        head, whole = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (200, b""), path
        for name in ("content-length", "content-type", "cache-control", "etag"):
            assert head.headers.get(name) == whole.headers.get(name), (path, name)


def test_many_pictures_are_marked_and_deleted_by_one_request_each(server, client, monkeypatch):
    first, second, stuck = (one["id"] for one in server.draw(prompt="a herd", num_images=3)["pictures"])
    ids = [second, "0" * 20, first, first]
    assert client.post("/api/pictures/favourite", json={"ids": ids}).json() == {"marked": [second, first]}
    assert found(client, "herd favourite:yes") == [second, first]
    assert client.post("/api/pictures/favourite", json={"ids": [first], "liked": False}).json() == {"marked": [first]}
    assert found(client, "herd favourite:yes") == [second]
    unlink = Path.unlink

    def refused(path, **options):
        if path == server.service.gallery.path(server.service.gallery.find(stuck)):
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        told = client.post("/api/pictures/delete", json={"ids": [*ids, stuck]}).json()
    assert told == {
        "deleted": [second, first], "missing": ["0" * 20], "not_yours": [], "failed": [stuck],
        "why": "1 could not be deleted: Permission denied",
    }  # fmt: skip
    assert found(client, "herd") == [stuck]
    assert (server.service.gallery.folder / "favourites.txt").read_text() == ""
    for wrong in ({"ids": []}, {"ids": ["../x"]}, {"ids": ["0" * 20] * 501}, {"ids": [stuck], "all": True}):
        assert client.post("/api/pictures/delete", json=wrong).status_code == 422


def test_pictures_that_come_and_go_while_the_server_runs_are_found_by_a_refresh(server, client):
    gallery = server.service.gallery
    one, other = (gallery.find(one["id"]) for one in server.draw(prompt="a migrant", num_images=2)["pictures"])
    assert client.post("/api/pictures/refresh").json() == {"added": 0, "removed": 0}
    day = gallery.folder / "2001-02-03"
    day.mkdir()
    for name in ("00001-7.png", "00002-8.png", "notes.txt", "00003-9.png"):
        (day / name).write_bytes(gallery.path(one).read_bytes() if name[4] != "3" else b"damaged")
    half = gallery.path(one).with_name(".half.tmp")
    half.touch()
    gallery.path(other).unlink()
    assert client.post("/api/pictures/refresh").json() == {"added": 2, "removed": 1}
    half.unlink()  # Somebody may be about to write it.
    came = client.get("/api/pictures", params={"search": "migrant date:2001-02-03"}).json()["pictures"]
    assert [one["file"] for one in came] == ["2001-02-03/00002-8.png", "2001-02-03/00001-7.png"]
    assert found(client, "migrant") == [*(one["id"] for one in came), one.id]
    assert client.post("/api/pictures/refresh").json() == {"added": 0, "removed": 0}


def test_a_picture_that_its_job_has_told_of_meanwhile_stays_as_that_has_it(server):
    gallery = server.service.gallery
    row = gallery.find(server.draw()["pictures"][0]["id"])

    async def added():
        return gallery.add_file(row.path, 0.0, gallery.read(row.path))

    assert server.call(added()) is False
    assert gallery.find(row.id) == row


def test_all_who_ask_for_a_refresh_while_one_runs_share_the_next(server, monkeypatch):
    library, looked = server.service.library, []
    files = server.service.gallery.files
    monkeypatch.setattr(server.service.gallery, "files", lambda: (looked.append(1), files())[1])

    async def many():
        return await asyncio.gather(*(library.refresh() for _ in range(9)))

    assert server.call(many()) == [(0, 0)] * 9
    assert len(looked) <= 2


def test_a_link_in_the_place_of_a_picture_is_not_followed(server, client, tmp_path):
    picture = server.draw()["pictures"][0]
    path = server.service.gallery.path(server.service.library.find(picture["id"]))
    (tmp_path / "secret").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    for name in (f"/files/{picture['id']}.png", f"/files/{picture['id']}.jpg", picture["thumb"]):
        assert client.get(name).status_code == 404


@pytest.mark.parametrize("damage", ["cut", "text", "large"])
def test_a_damaged_picture_is_said_to_be_damaged(server, client, damage):
    picture = server.draw()["pictures"][0]
    path = server.service.gallery.path(server.service.library.find(picture["id"]))
    day, whole = path.parent.name, path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"x")
    if damage == "large":
        Image.new("1", (14_000, 14_000)).save(path, "PNG")
    for name in (f"/files/{picture['id']}.jpg", f"/files/{picture['id']}.webp", picture["thumb"]):
        answer = client.get(name)
        assert answer.status_code == 404
        assert day not in (message := answer.json()["error"]["message"])
        assert picture["id"] in message


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%00", "x.png", "00001-7.png", "2026-11-22%2f00001-7.png"])
def test_ids_are_no_paths(client, name):
    assert client.get(f"/files/{name}").status_code == 404
    assert client.get(f"/thumbs/{name}").status_code == 404


def test_the_form_begins_with_what_a_few_step_model_is_made_for(server, little, tmp_path):
    folder = tmp_path / "lcm"
    shutil.copytree(little, folder)  # Links would change the times of files that other processes look at.
    config = folder / "scheduler" / "scheduler_config.json"
    changed = {**json.loads(config.read_text()), "_class_name": "LCMScheduler"}
    config.unlink()
    config.write_text(json.dumps(changed))
    found = Catalogue(replace(server.settings, folders=[folder])).begins_with("lcm")
    assert found == {"fast": True, "steps": 4, "guidance_scale": 1.0}


def test_models_and_their_bounds_are_told(server, client, little):
    (model,) = client.get("/api/models").json()
    assert model["name"] == little.name
    assert (model["state"], model["default_size"], model["has_safety_checker"]) == ("ready", [32, 32], True)
    fields = client.get("/api/options").json()["fields"]
    assert fields["width"] == {"default": 32, "min": model["size_unit"], "max": 2048, "step": model["size_unit"]}
    assert fields["steps"]["max"] == 500
    assert not [name for name, one in fields.items() if "value" in one]
    assert client.get("/api/options?model=none").status_code == 404
    told = client.get("/api/server").json()
    assert (told["current"], told["features"]["runs"]) == (little.name, False)
    assert told["folders"]["--gallery"][0].endswith("gallery")
    assert told["folders"]["--upscaler-dir"] == []
    assert told["allows"]["pickled"] is False
    assert {"name": "Euler a"} in client.get("/api/schedulers").json()
    assert client.get("/api/loras").json() == []


def test_a_prompts_tokens_and_syntax_are_told(client):
    text = "a (red:1.3) circle [x:y:3] <lora:style:1> BREAK {a|b} AND (not"
    found = client.post("/api/tokens", json={"text": text}).json()
    spans = [(text[span["start"] : span["end"]], span["kind"], span.get("weight")) for span in found["spans"]]
    assert spans == [
        ("(red:1.3)", "weight", 1.3), ("[x:y:3]", "edit", None), ("<lora:style:1>", "lora", None),
        ("BREAK", "break", None), ("{a|b}", "choice", None), ("AND", "and", None),
    ]  # fmt: skip
    assert found["notes"] == ["A bracket is never closed: (not"]
    (encoder,) = found["encoders"]
    assert encoder["chunks"] == 2
    assert encoder["count"] > 3
    plain = client.post("/api/tokens", json={"text": text, "prompt_weights": False}).json()
    assert [span["kind"] for span in plain["spans"]] == ["lora", "choice"]
    assert plain["notes"] == []
    assert plain["encoders"][0]["chunks"] == 1
    words = client.post("/api/tokens", json={"text": "a __colour__"}).json()
    assert words["notes"] == ["__colour__ is taken as words: there is no such wildcard."]
    opened = client.post("/api/tokens", json={"text": "(a bright lighthouse"}).json()
    assert opened["notes"] == ["A bracket is never closed: (a bright l…"]
    assert words["spans"] == [{"start": 2, "end": 12, "kind": "unread"}]
    assert client.post("/api/tokens", json={"text": "(a:99999999)"}).status_code == 422
    assert client.post("/api/tokens", json={"text": "a", "model": "none"}).status_code == 404


def test_a_wildcard_that_no_named_folder_has_is_told_as_a_mistake(little, tmp_path):
    found = read_tokens(little, "a __colour__", negative=False, wildcards=[tmp_path])
    assert found["notes"] == ["__colour__: there is no such wildcard, so nothing is drawn."]
    found = read_tokens(little, "a __colour__", negative=True, wildcards=[tmp_path])
    assert found["notes"] == ["__colour__ is taken as words: choices are made in prompts alone."]


def test_health_and_figures_are_told(server, client):
    server.draw()
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").json() == {"status": "ready"}
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    samples = {sample.labels.get("state", ""): sample.value for sample in families["olivelike_jobs"].samples}
    assert samples["done"] >= 1
    memory = {sample.labels["process"]: sample.value for sample in families["olivelike_memory_bytes"].samples}
    assert memory.keys() == {"server", "painter"}


def test_the_page_has_its_files_and_no_others(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    weak = f'"another", W/{page.headers["etag"]}'
    assert client.get("/", headers={"If-None-Match": weak}).status_code == 304
    again = client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304
    assert client.get("/page/page.js").headers["content-type"].startswith("text/javascript")
    declared = client.get("/page/declared.js")
    assert declared.headers["content-type"].startswith("text/javascript")
    assert declared.text.startswith("export const FORM = {")
    for name in ("__init__.py", "..%2f__init__.py", "none.js", "version/none.js"):
        assert client.get(f"/page/{name}").status_code == 404


def test_browsers_keep_files_of_the_version_that_the_page_names(client, tmp_path, monkeypatch):
    def version(language):
        (found,) = set(re.findall(r"/page/(\w+)/", client.get("/", headers={"Accept-Language": language}).text))
        return found

    kept = client.get(f"/page/{version('de')}/theme.js", headers={"Accept-Language": "de"})
    assert "immutable" in kept.headers["cache-control"]
    assert "vary" not in kept.headers
    assert kept.text == client.get("/page/theme.js", headers={"Accept-Language": "de"}).text
    # Neither in another language nor of another time.
    for other in (version("de"), "0" * 12):
        found = client.get(f"/page/{other}/theme.js", headers={"Accept-Language": "fr"})
        assert found.headers["cache-control"] == "no-cache"
        assert found.text == client.get("/page/theme.js", headers={"Accept-Language": "fr"}).text
    changed = tmp_path / "page"
    shutil.copytree(page_routes._FOLDER, changed)
    monkeypatch.setattr(page_routes, "_FOLDER", changed)
    before = version("de")
    assert version("de") == before
    (changed / "theme.js").write_text("export const theme = 1;\n", encoding="utf-8")
    assert version("de") != before
    assert version("de") != version("en")


def test_seeds_of_64_bits_are_drawn_told_and_found(server, client):
    seed = 2**64 - 1
    for given in (seed, str(seed)):  # As text too: JavaScript has no such number.
        (picture,) = server.draw(seed=given)["pictures"]
        assert (picture["seed"], picture["record"]["seed"]) == (seed, seed)
    found = client.get("/api/pictures", params={"search": f"seed:{seed}"}).json()["pictures"]
    assert {one["seed"] for one in found} == {seed}
    drawn = client.post("/sdapi/v1/txt2img", json={"prompt": "a", "steps": 2, "seed": 2**40})
    assert "Seed: 1099511627776" in drawn.json()["info"]
    assert client.post("/api/jobs", json={"prompt": "a", "seed": 2**64}).status_code == 422


@pytest.mark.parametrize("search", ["seed:" + "9" * 30, "size:large", "cfg:much"])
def test_a_term_that_no_picture_can_have_is_refused(client, search):
    answer = client.get("/api/pictures", params={"search": search})
    assert answer.status_code == 422
    assert search.partition(":")[0] in answer.text


def test_pages_of_the_gallery_leave_out_recipes_that_are_longer_than_an_order_s(server, client):
    record = PictureRecord("long " * 100_000, seed=77_001)
    kept = server.call(server.service.library.keep(png((8, 8)), record, "anna"))
    (listed,) = client.get("/api/pictures", params={"search": "seed:77001"}).json()["pictures"]
    assert (listed["id"], listed["record"], listed["parameters"]) == (kept.id, None, None)
    assert len(listed["prompt"]) == 1000
    assert client.get(f"/api/pictures/{kept.id}").json()["record"]["prompt"] == record.prompt
    client.delete(f"/api/pictures/{kept.id}")
