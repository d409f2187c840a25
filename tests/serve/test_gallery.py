from __future__ import annotations

import os
import random
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from olivelike.errors import StoreError, UsageError
from olivelike.runtime.pictures import PictureRecord
from olivelike.runtime.pictures.picture_record import UsedFile, a1111_text, encode_picture
from olivelike.serve.gallery import gallery as module
from olivelike.serve.gallery.gallery import PASSING, Filter, Gallery, PictureRow, picture_id
from olivelike.serve.gallery.journal import JobRow

RECORD = PictureRecord("a red circle", steps=20, seed=7, sampler="DDIM", model="demo", width=8, height=8)


@pytest.fixture
def gallery(tmp_path, monkeypatch):
    monkeypatch.setattr("olivelike.serve.gallery.gallery._today", lambda: "2026-11-27")  # No midnight in a test.
    gallery = Gallery(tmp_path / "gallery")
    yield gallery
    gallery.close()


def draw(gallery, number=1, *, folder="2026-11-22", job=None, sheet=False, soon=False, **record):
    made = replace(RECORD, **record)
    path = f"{folder}/{number:05}-{'sheet' if sheet else made.seed}.png"
    data = encode_picture(Image.new("RGB", (8, 8), "red"), ".png", made, sheet=sheet)
    (gallery.folder / folder).mkdir(exist_ok=True)
    (gallery.folder / path).write_bytes(data)
    row = PictureRow(
        picture_id(path, data), path, job, number - 1, sheet, time.time(), 8, 8, made.seed, made.seed, 1, made.prompt,
        made.model, False, made.to_json(), a1111_text(made),
    )  # fmt: skip
    if soon:
        gallery.add_soon(row, None)
    else:
        gallery.add(row)
    return row


def test_an_id_is_of_path_and_content():
    ids = [
        picture_id(path, data)
        for path in ("2026-11-22/00001-7.png", "2026-11-22/00002-7.png")
        for data in (b"one", b"two", b"three")
    ]
    assert len(set(ids)) == 6
    assert all(len(one) == 20 and int(one, 16) >= 0 for one in ids)
    assert picture_id("2026-11-22/00001-7.png", b"one") == ids[0]


def test_a_pixel_in_the_middle_of_a_large_picture_changes_its_id():
    image = Image.effect_noise((512, 512), 100)
    one = encode_picture(image, ".png", RECORD)
    for x in range(512):  # Until the file is as long as before.
        other = image.copy()
        other.putpixel((x, 256), 128)
        two = encode_picture(other, ".png", RECORD)
        if one != two and len(one) == len(two):
            break
    differing = [place for place, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    assert differing[0] > 1 << 14, "what tells it is at the end alone"
    assert picture_id("2026-11-22/00001-7.png", one) != picture_id("2026-11-22/00001-7.png", two)


def found(gallery, *words, **exact):
    return [row.id for row in gallery.search(Filter(words=words, exact=exact))[0]]


def test_pictures_are_found_by_a_lora_of_their_record(gallery):
    led = draw(gallery, 1, loras=(UsedFile('it\'s "ink"', "0" * 8),))
    draw(gallery, 2)
    names = [[row.id for row in gallery.search(Filter(lora=name))[0]] for name in ('it\'s "ink"', "ink")]
    assert names == [[led.id], []]


def test_whoever_looks_finds_a_picture_that_is_still_to_be_written_down(gallery):
    for number, look in enumerate((gallery.find, lambda one: found(gallery, seed=7), lambda _: gallery.count()), 1):
        assert look(draw(gallery, number, soon=True).id)
    assert gallery.count() == 3


def test_a_picture_that_the_disk_has_no_room_for_is_written_down_once_it_has(gallery):
    full = gallery._database.execute("PRAGMA page_count").fetchone()[0]
    gallery._database.execute(f"PRAGMA max_page_count = {full}")
    row = draw(gallery, soon=True, job="one", prompt="a red circle" * 2_000)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        gallery.settle("one")
    assert gallery.count() == 0
    small = draw(gallery, 2, soon=True, job="other")
    gallery.settle("other")
    assert found(gallery) == [small.id]
    gallery._database.execute("PRAGMA max_page_count = 4294967294")
    assert found(gallery) == [row.id, small.id]


def test_favourites_are_those_of_the_file_when_the_gallery_is_opened(tmp_path):
    with closing(Gallery(tmp_path / "gallery")) as gallery:
        liked, other = draw(gallery, 1), draw(gallery, 2)
        gallery.mark_favourites([liked], liked=True)
    for index in (gallery.folder / ".index").glob("pictures.sqlite*"):
        index.unlink()
    file = gallery.folder / "favourites.txt"
    file.write_bytes(file.read_bytes() + b"../../etc/passwd\n\xff\0\n2026-11-22/none.png\n")
    with closing(Gallery(tmp_path / "gallery")) as again:
        assert again.favourites([liked, other]) == {liked.id}
        again.mark_favourites([other], liked=True)
    assert file.read_text().splitlines() == [liked.path, other.path]


def test_favourites_that_can_not_be_read_are_not_lost(tmp_path, monkeypatch):
    with closing(Gallery(tmp_path)) as gallery:
        gallery.mark_favourites([draw(gallery, 1)], liked=True)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_MOST_FAVOURITES", 5)
        with pytest.raises(StoreError, match=r"favourites\.txt: can't be read"):
            Gallery(tmp_path)
    with closing(Gallery(tmp_path)) as again:
        rows, _ = again.search()
        assert again.favourites(rows) == {row.id for row in rows}


def test_a_name_that_is_no_column_reaches_no_query(gallery):
    with pytest.raises(ValueError, match="is no column"):
        found(gallery, **{"1 = 1 OR id": "x"})


def test_pictures_are_found_by_their_recipe_newest_first(gallery):
    red = draw(gallery, 1)
    blue = draw(gallery, 2, prompt="a BLUE 100% circle_x", seed=8, model="painter")
    assert found(gallery) == [blue.id, red.id]
    assert found(gallery, "circle", "Blue") == [blue.id]
    assert found(gallery, "ddim") == [blue.id, red.id]
    assert found(gallery, "100%") == [blue.id]
    assert found(gallery, "circle_x") == [blue.id]
    assert found(gallery, "_ed") == []
    assert found(gallery, model="painter") == [blue.id]
    assert found(gallery, seed="7") == [red.id]


@pytest.mark.parametrize("seed", [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_seeds_have_64_bits(gallery, seed):
    row = draw(gallery, 1, seed=seed)
    draw(gallery, 2, seed=seed - 1)
    assert (gallery.find(row.id).seed, gallery.find(row.id).first_seed) == (seed, seed)
    assert found(gallery, seed=str(seed)) == found(gallery, seed=seed) == [row.id]


def test_pages_follow_one_another(gallery):
    rows = [draw(gallery, number, seed=number) for number in range(1, 6)]
    first, older = gallery.search(limit=2)
    second, older = gallery.search(before=older, limit=2)
    third, end = gallery.search(before=older, limit=2)
    assert [row.id for row in (*first, *second, *third)] == [row.id for row in rows[::-1]]
    assert end is None


def test_numbers_go_on_where_the_folder_ends(gallery):
    folder, first = gallery.reserve(passing=False)
    assert first == 1
    (gallery.folder / folder / "00041-7.png").touch()
    (gallery.folder / folder / "notes.txt").touch()
    assert gallery.reserve(passing=False) == (folder, 42)


def test_jobs_that_are_drawn_at_once_have_numbers_of_their_own(gallery):
    folder, first = gallery.reserve(passing=False)
    job = JobRow("j", "pictures", "me", "drawing", 1.0, {"prompt": "a"}, {"files": 4}, folder=folder, first=first)
    gallery.journal.add(job)
    assert gallery.reserve(passing=False) == (folder, 5)
    assert gallery.reserve(passing=True)[1] == 1
    gallery.journal.end("j", "done")
    assert gallery.reserve(passing=False) == (folder, 1)


def test_numbers_are_held_for_a_job_that_the_journal_does_not_have_yet(gallery):
    folder, first = gallery.reserve(passing=False, held=4)
    assert first == 1
    assert gallery.reserve(passing=False) == (folder, 5)
    assert gallery.reserve(passing=True)[1] == 1
    gallery.release()
    assert gallery.reserve(passing=False) == (folder, 1)


@pytest.mark.parametrize("how", ["missing", "damaged", "empty"])
def test_the_files_make_the_index_again(gallery, how):
    job = JobRow("j", "pictures", "me", "done", 1.0, {"prompt": "a"}, {"files": 3}, folder="2026-11-22", first=1)
    gallery.journal.add(job)
    rows = [draw(gallery, 1, job="j"), draw(gallery, 2, job="j"), draw(gallery, 3, job="j", sheet=True)]
    stranger = draw(gallery, 9)
    for number, row in enumerate((*rows, stranger)):
        os.utime(gallery.path(row), (number, number))
    gallery.close()
    index = gallery.folder / ".index" / "pictures.sqlite"
    if how == "missing":
        index.unlink()
    else:
        index.write_bytes(b"" if how == "empty" else b"SQLite format 3\0" + os.urandom(5000))
    again = Gallery(gallery.folder)
    try:
        assert [row.id for row in again.of_job("j")] == [row.id for row in rows]
        assert [row.number for row in again.of_job("j")] == [0, 1, None]
        assert found(again, "circle") == [stranger.id, rows[1].id, rows[0].id]
        assert again.find(stranger.id).job is None
    finally:
        again.close()


def test_files_that_vanish_or_come_are_noticed_at_the_start(gallery):
    gone, stays = draw(gallery, 1), draw(gallery, 2, seed=8)
    (gallery.folder / gone.path).unlink()
    (gallery.folder / "2026-11-22" / "00003-9.png").write_bytes(b"no picture")
    (gallery.folder / "2026-11-22" / ".0123.tmp").write_bytes(b"half a picture")
    (gallery.folder / "2026-11-22" / "mine.txt").write_text("keep")
    copied = (gallery.folder / stays.path).read_bytes()
    for other in (
        "2026-11-22/\u0660\u0660\u0660\u0660\u0669-\u0664\u0662.png",
        "\u0662026-11-22/00001-1.png",
    ):  # In digits of Arabic.
        path = gallery.folder / other
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(copied)
    gallery.close()
    again = Gallery(gallery.folder)
    try:
        assert found(again) == [stays.id]
        left = sorted(path.name for path in (gallery.folder / "2026-11-22").iterdir())
        assert left[:3] == ["00002-8.png", "00003-9.png", "mine.txt"]
    finally:
        again.close()


def test_what_no_index_can_hold_keeps_no_gallery_from_being_opened(gallery):
    row = draw(gallery)
    day = gallery.folder / "2026-11-22"
    huge = "9" * 23
    for number, (key, text) in enumerate(
        (
            ("parameters", f"x\nSteps: 20, Sampler: Euler a, Seed: {huge}, Size: 1x1"),
            ("olivelike", f'{{"format": "olivelike/picture/1", "prompt": "a", "seed": {huge}}}'),
            ("olivelike", '{"format": "olivelike/picture/1", "prompt": "a half \\ud800"}'),
        )
    ):
        texts = PngInfo()
        texts.add_text(key, text)
        Image.new("RGB", (8, 8)).save(day / f"0001{number}-1.png", pnginfo=texts)
    (gallery.folder / "2026-11-21").touch()
    (day / "x.tmp").mkdir()
    gallery.close()
    again = Gallery(gallery.folder)
    try:
        assert {one.prompt for one in again.search()[0]} == {row.prompt, "x", "a half ?"}
    finally:
        again.close()


def test_a_day_that_is_a_link_is_left_alone(gallery, tmp_path):
    row = draw(gallery)
    elsewhere = tmp_path / "elsewhere"
    (gallery.folder / "2026-11-22").rename(elsewhere)
    (elsewhere / "precious.tmp").touch()
    (gallery.folder / "2026-11-22").symlink_to(elsewhere)
    gallery.close()
    again = Gallery(gallery.folder)
    try:
        assert found(again) == []
        assert (elsewhere / "precious.tmp").exists()
        assert not again.has_file(row)
    finally:
        again.close()


def test_deleting_takes_file_and_thumbnail(gallery):
    row = draw(gallery)
    gallery.thumb(row.id).write_bytes(b"small")
    gallery.delete(row)
    assert gallery.find(row.id) is None
    assert not gallery.path(row).exists()
    assert not gallery.thumb(row.id).exists()


def test_who_had_a_picture_drawn_is_known_until_the_index_is_lost(tmp_path):
    with closing(Gallery(tmp_path / "gallery")) as gallery:
        row, other = draw(gallery), draw(gallery, 2)
        gallery.add(row, "anna")
    with closing(Gallery(tmp_path / "gallery")) as gallery:
        assert [gallery.maker(one) for one in (row, other)] == ["anna", None]
        gallery.delete(row)
        assert gallery.maker(draw(gallery)) is None


def test_pictures_that_are_not_saved_pass(gallery):
    row = draw(gallery, folder=PASSING)
    assert gallery.find(row.id) == row
    assert found(gallery) == []
    gallery.drop_passing()
    assert gallery.find(row.id) is not None
    gallery.add(replace(row, created=time.time() - 4000))
    gallery.drop_passing()
    assert gallery.find(row.id) is None
    assert not gallery.path(row).exists()


def test_a_gallery_has_one_server(gallery):
    with pytest.raises(UsageError, match="another server has this gallery"):
        Gallery(gallery.folder)
    gallery.close()
    Gallery(gallery.folder).close()


def test_a_place_that_can_not_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't be the gallery"):
        Gallery(tmp_path / "file")


def test_a_damaged_journal_is_set_aside(gallery):
    gallery.journal.add(JobRow("j", "pictures", "me", "queued", 1.0, {"prompt": "a"}, {"files": 1}))
    gallery.close()
    path = gallery.folder / ".index" / "jobs.sqlite"
    path.write_bytes(b"\0" * 5000)
    again = Gallery(gallery.folder)
    try:
        assert again.journal.was_damaged
        assert again.journal.unfinished() == []
        assert path.with_name("jobs.sqlite.damaged").read_bytes() == b"\0" * 5000
    finally:
        again.close()


def test_a_damaged_log_of_the_journal_is_set_aside_and_one_that_a_kill_left_is_not(gallery, tmp_path):
    gallery.journal.add(JobRow("j", "pictures", "me", "queued", 1.0, {"prompt": "a"}, {"files": 1}))
    kept = gallery.folder / ".index"
    for name in ("killed", "damaged"):  # As the files are while the server runs.
        (tmp_path / name / ".index").mkdir(parents=True)
        for path in kept.glob("jobs.sqlite*"):
            shutil.copyfile(path, tmp_path / name / ".index" / path.name)
    log = tmp_path / "damaged" / ".index" / "jobs.sqlite-wal"
    log.write_bytes(b"x" * log.stat().st_size)
    for name, jobs in (("killed", 1), ("damaged", 0)):
        again = Gallery(tmp_path / name)
        try:
            assert again.journal.was_damaged == (jobs == 0)
            assert len(again.journal.unfinished()) == jobs
        finally:
            again.close()
    assert log.with_name("jobs.sqlite-wal.damaged").read_bytes().startswith(b"xxx")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE jobs SET asked = '{}'",
        "UPDATE jobs SET asked = '{'",
        "UPDATE jobs SET plan = '[]'",
        "UPDATE jobs SET state = 'strange'",
        "DROP TABLE jobs; CREATE TABLE jobs (id TEXT)",
    ],
)
def test_a_journal_that_can_not_be_understood_is_set_aside(gallery, change):
    gallery.journal.add(JobRow("j", "pictures", "me", "queued", 1.0, {"prompt": "a"}, {"files": 1}))
    gallery.close()
    whole = Gallery(gallery.folder)
    assert not whole.journal.was_damaged
    whole.close()
    path = gallery.folder / ".index" / "jobs.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(change)
    again = Gallery(gallery.folder)
    try:
        assert again.journal.was_damaged
        assert again.journal.jobs() == []
        assert path.with_name("jobs.sqlite.damaged").exists()
    finally:
        again.close()


@pytest.mark.parametrize("spoilt", ["all of it", "the frames", "the end"])
def test_a_damaged_log_of_a_killed_server_is_set_aside_by_name(gallery, tmp_path, caplog, spoilt):
    for number in range(4):
        gallery.journal.add(JobRow(f"j{number}", "pictures", "me", "queued", 1.0, {"prompt": "a"}, {"files": 1}))
    killed = tmp_path / "killed" / ".index"
    shutil.copytree(gallery.folder / ".index", killed)
    (killed / "jobs.sqlite-shm").unlink()
    log = killed / "jobs.sqlite-wal"
    start = {"all of it": 0, "the frames": 32, "the end": log.stat().st_size - 500}[spoilt]
    whole = Gallery(shutil.copytree(tmp_path / "killed", tmp_path / "whole"))
    assert not whole.journal.was_damaged
    assert len(whole.journal.jobs()) == 4
    whole.close()
    rubbish = log.read_bytes()[:start] + random.Random(0).randbytes(log.stat().st_size - start)
    log.write_bytes(rubbish)
    again = Gallery(tmp_path / "killed")
    assert again.journal.was_damaged
    assert (killed / "jobs.sqlite-wal.damaged").read_bytes() == rubbish
    assert "jobs.sqlite-wal was damaged; it is set aside as jobs.sqlite-wal.damaged" in caplog.text
    assert len(again.journal.jobs()) == (3 if spoilt == "the end" else 0)
    again.journal.add(JobRow("new", "pictures", "me", "queued", 1.0, {"prompt": "a"}, {"files": 1}))
    again.close()
    after = Gallery(tmp_path / "killed")
    assert not after.journal.was_damaged
    after.close()
