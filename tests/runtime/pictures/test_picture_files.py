"""Where pictures are written: names, patterns, sheets, and what is never lost."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from picture_samples import PLAIN, RECORD, save
from PIL import Image, ImageFont

from olivelike.errors import SessionError, UsageError
from olivelike.runtime.pictures import PictureWriter, is_picture, read_picture, read_picture_record, sheets
from olivelike.runtime.pictures.picture_record import a1111_text, encode_picture
from olivelike.runtime.pictures.pixels import to_pictures
from olivelike.runtime.pictures.sheets import PlotHeads, SheetPicture, picture_sheet, plot_sheet
from olivelike.runtime.pictures.writer import parse_output, slug


def test_nothing_is_overwritten_unasked(tmp_path, image):
    taken = tmp_path / "cat.png"
    taken.write_bytes(b"mine")
    writer = PictureWriter(taken)
    assert [writer.save(image, PLAIN).name for _ in range(2)] == ["cat-2.png", "cat-3.png"]
    assert taken.read_bytes() == b"mine"
    asked = PictureWriter(taken, overwrite=True)
    assert [asked.save(image, PLAIN).name for _ in range(2)] == ["cat.png", "cat-2.png"]
    assert is_picture(taken)
    assert not list(tmp_path.glob(".*"))


def test_pictures_in_a_folder_are_counted_on(tmp_path, image):
    folder = tmp_path / "out{1}"
    assert [PictureWriter(f"{tmp_path}/new/").save(image, PLAIN).name for _ in range(2)] == [
        "00001-7.png", "00002-7.png",
    ]  # fmt: skip
    folder.mkdir()
    (folder / "00041-3.png").touch()
    (folder / "00099-3.jpg").touch()
    writer = PictureWriter(folder)
    assert [writer.save(image, replace(PLAIN, seed=seed)).name for seed in (1, 2)] == ["00042-1.png", "00043-2.png"]


def test_names_follow_the_pattern(tmp_path, image):
    pattern = tmp_path / "{folder}" / "{prompt}_{seed:04}_{scheduler}_{width}x{height}_{{x}}.jpg"
    path = PictureWriter(pattern, folder="My Model").save(image, replace(PLAIN, prompt="../../A cat: 東京!\n"))
    assert path == tmp_path / "my-model" / "a-cat-東京_0007_euler-a_8x8_{x}.jpg"
    path = PictureWriter(tmp_path / "{date}" / "{time}_{index}").save(image, PLAIN)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d_1\.png", path.relative_to(tmp_path).as_posix())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("C:\\con", "c-con"),
        ("...", "untitled"),
        ("a" * 200, "a" * 60),
        ("東" * 200, "東" * 40),
        ("a\0b\u202egnp", "a-b-gnp"),
    ],
)
def test_texts_become_safe_names(text, expected):
    assert slug(text) == expected


def test_device_names_of_windows_are_avoided(tmp_path, image):
    assert save(tmp_path, image, replace(PLAIN, prompt="NUL"), "{prompt}.png").name == "nul_.png"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("{promt}.png", "did you mean 'prompt'"),
        ("{0}.png", "fields: index"),
        ("{seed.real}.png", "there is no field"),
        ("{seed!r}.png", "there is no field"),
        ("{index:999999}.png", "only numbers take a width"),
        ("{prompt:>9}.png", "only numbers take a width"),
        ("{seed.png", "for a brace that is text"),
        ("cat.gif", "not .gif"),
        ("", "no name"),
    ],
)
def test_a_wrong_pattern_is_refused(output, message):
    with pytest.raises(UsageError, match=message):
        parse_output(output)


def test_what_can_t_be_written_is_said(tmp_path, image):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file" / "a.png", tmp_path / "file" / "b" / "a.png", tmp_path / f"{'x' * 300}.png"):
        with pytest.raises(UsageError, match=r"(can't be written|is a file)"):
            PictureWriter(output).save(image, PLAIN)
    with pytest.raises(UsageError, match=r"write a \.png"):
        save(tmp_path, image, replace(PLAIN, prompt="long " * 20_000), "a.jpg")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_whether_a_place_can_be_written_is_tried_without_a_trace(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "a.png", tmp_path / "file" / "b" / "a.png"):
        with pytest.raises(UsageError, match="file is a file; name another folder"):
            PictureWriter(place).require_writable(PLAIN)
    for place in (tmp_path, tmp_path / "new" / "{prompt}" / "a.png"):
        PictureWriter(place).require_writable(PLAIN)
    if Path("/proc/self").is_dir():
        with pytest.raises(UsageError, match="/proc can't be written to: "):
            PictureWriter("/proc/new/a.png").require_writable(PLAIN)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="there is no umask")
def test_pictures_have_the_permissions_of_other_files(tmp_path, image):
    (tmp_path / "other").touch()
    assert save(tmp_path, image).stat().st_mode == (tmp_path / "other").stat().st_mode


def test_processes_never_share_a_name(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom PIL import Image\n"
        "from olivelike.runtime.pictures import PictureRecord, PictureWriter\n"
        "for output in ('{index}.png', 'cat.png'):\n"
        "    writer = PictureWriter(Path(sys.argv[1]) / output)\n"
        "    for n in range(25): writer.save(Image.new('RGB', (4, 4)), PictureRecord('x', seed=int(sys.argv[2])))\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(seed)]) for seed in (1, 2, 3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    seeds = [read_picture_record(path).seed for path in tmp_path.iterdir()]
    assert [seeds.count(seed) for seed in (1, 2, 3)] == [50, 50, 50]


def test_a_sheet_shows_all_pictures_and_the_text_of_the_first(tmp_path):
    images = [Image.new("RGB", (4, 6), (40 * number, 0, 0)) for number in range(1, 6)]
    shown = [SheetPicture(image, "a cat", f"seed {number}") for number, image in enumerate(images)]
    writer = PictureWriter(tmp_path / "{index}.png")
    writer.save(images[0], PLAIN)
    paths = [writer.save_sheet(shown, PLAIN) for _ in range(2)]
    assert [path.name for path in paths] == ["sheet.png", "sheet-2.png"]
    assert writer.save(images[0], PLAIN).name == "2.png"
    found = read_picture(paths[0])
    assert (found.own, found.record.prompt, found.parameters) == (False, "a cat", a1111_text(PLAIN))
    with Image.open(paths[0]) as sheet:
        assert [colour[0] for _, colour in places(sheet, images)] == [40, 80, 120, 160, 200]
        assert len({place[1] for place, _ in places(sheet, images)}) == 2
    with pytest.raises(UsageError, match="nothing to show"):
        picture_sheet([])


def places(sheet, images):
    """Return the first pixel that has the colour of each picture, and the colour."""
    data = np.asarray(sheet)
    found = []
    for image in images:
        colour = image.getpixel((0, 0))
        down, across = np.argwhere((data == colour).all(axis=2))[0]
        found.append(((int(across), int(down)), colour))
    return found


def test_pictures_of_one_prompt_stand_below_it_in_rows_of_their_own():
    images = [Image.new("RGB", (200, 200), (200, number, 0)) for number in range(6)]
    shown = [SheetPicture(image, f"prompt {n // 3}", f"seed {n % 3}") for n, image in enumerate(images)]
    sheet = picture_sheet(shown)
    found = [place for place, _ in places(sheet, images)]
    assert [x for x, _ in found] == [8, 216, 424] * 2
    assert len({y for _, y in found}) == 2
    assert np.asarray(sheet)[:20].min() < 100, "the prompt is written above them"
    wide = picture_sheet(shown, columns=2)
    assert len({y for (_, y), _ in places(wide, images)}) == 4


def test_single_pictures_stand_in_a_square_with_their_prompts_below():
    images = [Image.new("RGB", (150, 150), (200, number, 0)) for number in range(4)]
    shown = [SheetPicture(image, f"prompt {n} " + "long " * 300, "seed 1") for n, image in enumerate(images)]
    sheet = picture_sheet(shown)
    assert [x for (x, _), _ in places(sheet, images)] == [8, 166] * 2
    assert sheet.height < 500, "a long prompt is cut"


def test_a_plot_has_heads_around_its_cells_and_marks_what_is_flagged():
    images = [Image.new("RGB", (150, 100), (200, number, 0)) for number in range(3)]
    black = SheetPicture(Image.new("RGB", (150, 100)), flagged=True)
    cells = {(0, 0, 0): [SheetPicture(images[0])], (0, 1, 1): [SheetPicture(images[1])], (1, 0, 1): [black]}
    heads = PlotHeads("a red circle", ["Steps 10", "Steps 20"], ["Euler", "DDIM"], ["Seed 1", "Seed 2"])
    data = np.asarray(plot_sheet(cells, heads))
    (left, top), (right, bottom) = (place for place, _ in places(data, images[:2]))
    assert (right - left, bottom - top) == (158, 108), "cells stand in a grid"
    assert data[:top, left : left + 150].min() < 100, "the column's head is above it"
    assert data[top : top + 100, : left - 8].min() < 100, "the row's head is left of it"
    plain = plot_sheet({**cells, (1, 0, 1): [replace(black, flagged=False)]}, heads)
    changed = (data != np.asarray(plain)).any(axis=2)
    assert changed.any(), "a flagged one says so"
    assert (np.asarray(plain)[changed] == 0).all(), "within its picture"
    with pytest.raises(UsageError, match="nothing to show"):
        plot_sheet({(0, 0, 0): []}, heads)


def test_heads_of_rows_have_as_many_lines_as_their_row_and_room_for_long_names():
    cells = {(0, 0, 0): [SheetPicture(Image.new("RGB", (256, 256)))]}
    words, name = "of many words " * 30, "a_name_of_a_file_that_is_much_longer_than_a_picture_is_wide"
    plain, long, wide = (plot_sheet(cells, PlotHeads("", down=[text])) for text in ("x", words, name))
    assert long.height == plain.height
    ink = np.asarray(long.convert("L"))[:, :256] < 128
    assert np.ptp(np.flatnonzero(ink.any(1))) > 80
    assert wide.width > plain.width + 256


def test_pictures_of_a_cell_lie_side_by_side():
    images = [Image.new("RGB", (20, 20), (200, number, 0)) for number in range(3)]
    sheet = plot_sheet({(0, 0, 0): [SheetPicture(image) for image in images]}, PlotHeads(""))
    first, second, third = (place for place, _ in places(sheet, images))
    assert (second[0] - first[0], second[1], third[0], third[1] - first[1]) == (28, first[1], first[0], 28)


def test_a_sheet_of_very_many_pixels_gets_smaller_pictures(monkeypatch):
    monkeypatch.setattr(sheets, "MOST_PIXELS", 10_000)
    shown = [SheetPicture(Image.new("RGB", (200, 200), (200, 0, 0)))] * 4
    plot = plot_sheet({(0, 0, n): [one] for n, one in enumerate(shown)}, PlotHeads("", [""] * 4))
    for sheet in (picture_sheet(shown), plot):
        assert (np.asarray(sheet) == (200, 0, 0)).all(axis=2).sum() == 10_000


def test_values_are_rounded_as_diffusers_rounds_them():
    from diffusers.image_processor import VaeImageProcessor

    pixels = np.random.default_rng(0).random((2, 6, 5, 3), dtype=np.float32)
    pixels[0, 0, :2] = [[0, 1, 0.5], [0.5 / 255, 1.5 / 255, 2.5 / 255]]
    refusal = SessionError("no numbers")
    ours, theirs = to_pictures(pixels, lambda: refusal), VaeImageProcessor.numpy_to_pil(pixels)
    assert [image.tobytes() for image in ours] == [image.tobytes() for image in theirs]
    pixels[1, 0, 0, 0] = np.nan
    with pytest.raises(SessionError, match="no numbers"):
        to_pictures(pixels, lambda: refusal)


def test_info_of_a_picture_imports_no_heavy_library(tmp_path, image):
    path = save(tmp_path, image, RECORD)
    code = (
        "import sys; from olivelike.cli.app import run_command_line\n"
        f"run_command_line(['info', {str(path)!r}])\n"
        "print([name for name in ('torch', 'numpy', 'diffusers', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert re.search(r"^Seed +42$", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_words_of_a_sheet_are_measured_as_far_as_they_can_be_seen(monkeypatch):
    measured = []
    plain = ImageFont.FreeTypeFont.getlength
    monkeypatch.setattr(
        ImageFont.FreeTypeFont, "getlength",
        lambda font, text, *more: (measured.append(len(text)), plain(font, text, *more))[1],
    )  # fmt: skip
    image = Image.new("RGB", (16, 16))
    for text in ("i" * 100_000, "i  " * 100_000, "a " + "i" * 100_000):
        long, short = (picture_sheet([SheetPicture(image, one)]) for one in (text, text[:700]))
        assert long.tobytes() == short.tobytes()
    assert max(measured) < 1000


def test_a_png_is_about_as_small_as_at_level_4():
    rows, columns = np.mgrid[0:256, 0:256]
    soft = 128 + 60 * np.stack([np.sin(rows / 30), np.cos(columns / 40), np.sin((rows + columns) / 55)], -1)
    grain = np.random.default_rng(0).normal(0, 4, soft.shape)
    drawn = Image.fromarray((soft + grain).astype(np.uint8))
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", compress_level=4)
    data = encode_picture(drawn, ".png", PLAIN)
    assert len(data) < 1.05 * len(buffer.getvalue())
    assert Image.open(io.BytesIO(data)).tobytes() == drawn.tobytes()
