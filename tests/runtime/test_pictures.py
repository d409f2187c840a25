from __future__ import annotations

import os
import re
import string
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops
from PIL.PngImagePlugin import PngInfo

from olivelike.errors import SessionError, SourceError, UsageError
from olivelike.runtime.pictures import (
    PictureRecord,
    PictureWriter,
    UsedFile,
    contact_sheet,
    is_picture,
    parse_output,
    read_picture,
    read_picture_record,
    to_pictures,
)
from olivelike.runtime.pictures.a1111 import a1111_text, parse_a1111
from olivelike.runtime.pictures.names import slug
from olivelike.runtime.pictures.new_file import write_new_file
from olivelike.runtime.pictures.record import record_from_json

RECORD = PictureRecord(
    'a (red:1.2) "circle", 東京 🎉\non a: background', "blurry,\nugly", 20, "DPM++ 2M Karras", "DPM++ 2M", "Karras",
    7.5, 0.25, 0.5, 42, 64, 96, 0.75, UsedFile("start.png", "ab" * 32), UsedFile("mask.png"), 1, False, "demo",
    "0123456789", (UsedFile("ink, wet", "0123456789ab", 0.8), UsedFile("line", "abcdef012345", 1.0)),
    "CPUExecutionProvider", "olivelike 0.1.0", {"RNG": "CPU"},
)  # fmt: skip
PLAIN = PictureRecord(
    "a cat", seed=7, steps=4, width=8, height=8, sampler="Euler a", version="olivelike 0.1.0"
)


@pytest.fixture(scope="module")
def image():
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8))


def save(folder, image, record=PLAIN, name="picture.png", **options):
    return PictureWriter(folder / name, **options).save(image, record)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.jpeg", "a.webp", "a.PNG"])
def test_a_picture_brings_back_what_made_it(tmp_path, image, name):
    path = save(tmp_path, image, RECORD, name)
    found = read_picture(path)
    assert path == tmp_path / name
    assert found.record == read_picture_record(path) == RECORD
    assert (found.own, found.width, found.height, found.parameters) == (True, 8, 8, a1111_text(RECORD))
    with Image.open(path) as opened:
        assert opened.format == found.format
        if found.format == "PNG":
            assert not ImageChops.difference(opened, image).getbbox()


def test_the_text_is_laid_out_as_a1111_does():
    text = a1111_text(replace(RECORD, other={}))
    assert text == (
        'a (red:1.2) "circle", 東京 🎉\non a: background\nNegative prompt: blurry,\nugly\n'
        "Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7.5, CFG Rescale: 0.25, Seed: 42, "
        "Size: 64x96, Model hash: 0123456789, Model: demo, Denoising strength: 0.75, Clip skip: 2, Eta: 0.5, "
        'Emphasis: None, Lora hashes: "ink, wet: 0123456789ab, line: abcdef012345", RNG: CPU, '
        "Version: olivelike 0.1.0"
    )


def test_the_text_of_a_picture_by_a1111_is_understood():
    found = parse_a1111(
        "photo of a cat, <lora:ink:0.8>\r\nhigh quality\r\nNegative prompt: bad,\n  worse \n"
        "Steps: 30, Sampler: DPM++ 2M SDE, Schedule type: Karras, CFG scale: 7, Seed: 1234567890, Size: 512x768, "
        'Model hash: 6ce0161689, Model: "v1, pruned: yes", VAE: x.pt, Clip skip: 2, Hires upscale: 2, '
        'Lora hashes: "ink: aabbccddeeff, wet: 112233445566", Version: v1.10.1'
    )
    assert (found.prompt, found.negative_prompt) == (
        "photo of a cat, <lora:ink:0.8>\nhigh quality",
        "bad,\nworse",
    )
    assert (found.steps, found.seed, found.width, found.height) == (30, 1234567890, 512, 768)
    assert (found.scheduler, found.guidance_scale, found.clip_skip) == ("DPM++ 2M SDE Karras", 7.0, 1)
    assert (found.model, found.model_hash, found.version) == ("v1, pruned: yes", "6ce0161689", "v1.10.1")
    assert found.loras == (UsedFile("ink", "aabbccddeeff"), UsedFile("wet", "112233445566"))
    assert found.other == {"VAE": "x.pt", "Hires upscale": "2"}


@pytest.mark.parametrize(
    ("text", "prompt", "negative"),
    [
        ("", "", None),
        ("a cat", "a cat", None),
        ("a cat\nNegative prompt: dog", "a cat", "dog"),
        ("ratio: 1, mood: 2", "ratio: 1, mood: 2", None),
        ("Negative prompt: x\nSteps: 1, Seed: 2, Size: 8x8", "", "x"),
        ("a\nNegative prompt: b\nNegative prompt: c\nSteps: 1, Seed: 2, Size: 8x8", "a", "b\nc"),
        ("x" * 200_000, "x" * 200_000, None),
    ],
)
def test_texts_that_lack_something_are_understood_as_far_as_they_go(text, prompt, negative):
    found = parse_a1111(text)
    assert (found.prompt, found.negative_prompt) == (prompt, negative)


@pytest.mark.parametrize(
    ("settings", "scheduler"),
    [
        ("Sampler: DPM++ 2M, Version: v1.9.4", "DPM++ 2M Karras"),
        ("Sampler: DPM++ 2M, Seed: 1", "DPM++ 2M Karras"),
        ("Sampler: DPM++ 2M, Version: v1.8.0", "DPM++ 2M"),
        ("Sampler: DPM++ 2M Karras, Version: v1.6.0", "DPM++ 2M Karras"),
        ("Sampler: DPM++ 2M SDE, Schedule type: Automatic", "DPM++ 2M SDE Exponential"),
        ("Sampler: DPM++ 2M SDE, Schedule type: Uniform", "DPM++ 2M SDE"),
    ],
)
def test_the_scheduler_of_a_text_is_what_a1111_takes(settings, scheduler):
    assert parse_a1111(f"a\nSteps: 20, CFG scale: 7, {settings}").scheduler == scheduler


def test_the_plain_schedule_is_written_since_a1111_would_take_another():
    plain = replace(PLAIN, scheduler="DPM++ 2M", sampler="DPM++ 2M")
    assert "Sampler: DPM++ 2M, Schedule type: Uniform, " in a1111_text(plain)
    found = parse_a1111(a1111_text(plain))
    assert (found.scheduler, found.schedule) == ("DPM++ 2M", None)
    assert "Schedule type" not in a1111_text(replace(PLAIN, sampler=None))


def test_values_that_are_no_numbers_stay_text():
    found = parse_a1111("a\nSteps: many, Seed: 5, Size: wide, CFG scale: 7")
    assert (found.steps, found.seed, found.width) == (None, 5, None)
    assert found.other == {"Steps": "many", "Size": "wide"}


lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=30).map(str.strip)
prompts = st.lists(lines, min_size=1, max_size=3).map("\n".join).map(str.strip)
names = st.text(string.printable + "é東", min_size=1, max_size=20).filter(lambda text: "\0" not in text)


@settings(max_examples=60, deadline=None)
@given(
    prompt=prompts.filter(lambda text: "Negative prompt:" not in text),
    negative=st.none() | prompts.filter(lambda text: text and "Negative prompt:" not in text),
    model=names,
    scale=st.floats(0, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_a1111_s_text_leads_back_to_what_was_written(prompt, negative, model, scale, seed):
    record = replace(
        PLAIN, prompt=prompt, negative_prompt=negative, model=model, guidance_scale=scale, seed=seed,
        scheduler="Euler a", other={"RNG": "CPU"},
    )  # fmt: skip
    assert parse_a1111(a1111_text(record)) == record


@settings(max_examples=60, deadline=None)
@given(prompt=st.text(), model=st.none() | st.text())
def test_the_record_leads_back_to_what_was_written(prompt, model):
    record = replace(PLAIN, prompt=prompt, model=model)
    assert record_from_json(record.to_json(), "here") == record


def test_prompts_that_no_text_can_hold_are_written_all_the_same(tmp_path, image):
    record = replace(PLAIN, prompt="a\0b \ud800\nNegative prompt: c")
    for name in ("a.png", "a.jpg"):
        assert read_picture_record(save(tmp_path, image, record, name)) == record


def png(path, **texts):
    chunks = PngInfo()
    for key, value in texts.items():
        chunks.add_itxt(key, value)
    Image.new("RGB", (8, 8)).save(path, "PNG", pnginfo=chunks)
    return path


def test_a_picture_of_a1111_is_read_from_png_and_jpeg(tmp_path, image):
    text = "a cat 東\nSteps: 1, Sampler: Euler, Seed: 2, Size: 8x8"
    assert read_picture_record(png(tmp_path / "a", parameters=text)).seed == 2
    for encoded in (text.encode("utf-16-be"), text.encode("utf-16-le")):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + encoded
        image.save(tmp_path / "a.jpg", exif=exif)
        found = read_picture(tmp_path / "a.jpg")
        assert (found.record.prompt, found.own) == ("a cat 東", False)
    exif.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0a cat"
    image.save(tmp_path / "b.webp", exif=exif)
    assert read_picture_record(tmp_path / "b.webp").prompt == "a cat"


def test_a_picture_without_a_record_has_none(tmp_path):
    for form in ("PNG", "JPEG", "WEBP"):
        path = tmp_path / form
        Image.new("RGB", (8, 8)).save(path, form)
        assert is_picture(path)
        assert read_picture(path).record is None
        with pytest.raises(UsageError, match="does not say what made it"):
            read_picture_record(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "no JSON"),
        ("[]", "format None"),
        ('{"format": "olivelike/picture/9"}', "update olivelike"),
        ('{"format": "olivelike/picture/1"}', "damaged at 'prompt'"),
        ('{"format": "olivelike/picture/1", "prompt": "a", "steps": "many"}', "damaged at 'steps'"),
        ('{"format": "olivelike/picture/1", "prompt": "a", "loras": [{}]}', r"damaged at 'loras\.0\.name'"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, record, message):
    with pytest.raises(SourceError, match=message):
        read_picture(png(tmp_path / "a.png", olivelike=record))


def test_files_that_are_no_pictures_are_refused(tmp_path, image):
    whole = save(tmp_path, image).read_bytes()
    for content in (
        b"",
        whole[:60],
        whole[: len(whole) // 2],
        b"\xff\xd8\xff\xe1\x00\x10Exif",
        b"RIFF\0\0\0\0WEBPVP8 ",
    ):
        path = tmp_path / "broken"
        path.write_bytes(content)
        with pytest.raises(SourceError, match="broken"):
            read_picture(path)
    assert not is_picture(tmp_path / "absent")
    with pytest.raises(SourceError, match="absent"):
        read_picture(tmp_path / "absent")


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
    assert [writer.save(image, replace(PLAIN, seed=seed)).name for seed in (1, 2)] == [
        "00042-1.png",
        "00043-2.png",
    ]


def test_names_follow_the_pattern(tmp_path, image):
    pattern = tmp_path / "{folder}" / "{prompt}_{seed:04}_{scheduler}_{width}x{height}_{{x}}.jpg"
    path = PictureWriter(pattern, folder="My Model").save(
        image, replace(PLAIN, prompt="../../A cat: 東京!\n")
    )
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
        ("{promt}.png", "did you mean {prompt}"),
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
    for output in (
        tmp_path / "file" / "a.png",
        tmp_path / "file" / "b" / "a.png",
        tmp_path / f"{'x' * 300}.png",
    ):
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


def test_a_disk_without_links_keeps_names_apart_too(tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    write_new_file(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        write_new_file(tmp_path / "a", b"2")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


def test_nothing_half_written_is_left_when_writing_fails(tmp_path, monkeypatch):
    def fail(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "hardlink_to", fail)
    with pytest.raises(KeyboardInterrupt):
        write_new_file(tmp_path / "a", b"1")
    assert not list(tmp_path.iterdir())


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
    writer = PictureWriter(tmp_path / "{index}.png")
    writer.save(images[0], PLAIN)
    paths = [writer.save_sheet(images, PLAIN) for _ in range(2)]
    assert [path.name for path in paths] == ["sheet.png", "sheet-2.png"]
    assert writer.save(images[0], PLAIN).name == "2.png"
    found = read_picture(paths[0])
    assert (found.own, found.record.prompt, found.parameters) == (False, "a cat", a1111_text(PLAIN))
    with Image.open(paths[0]) as sheet:
        assert sheet.size == (12, 12)
        assert [sheet.getpixel((4 * column + 2, 6 * row + 2))[0] for row in (0, 1) for column in range(3)] == [
            40, 80, 120, 160, 200, 0,
        ]  # fmt: skip
    assert contact_sheet(images, columns=2).size == (8, 18)
    with pytest.raises(UsageError, match="nothing to show"):
        contact_sheet([])


def test_values_are_rounded_as_diffusers_rounds_them():
    from diffusers.image_processor import VaeImageProcessor

    pixels = np.random.default_rng(0).random((2, 6, 5, 3), dtype=np.float32)
    pixels[0, 0, :2] = [[0, 1, 0.5], [0.5 / 255, 1.5 / 255, 2.5 / 255]]
    ours, theirs = to_pictures(pixels), VaeImageProcessor.numpy_to_pil(pixels)
    assert [image.tobytes() for image in ours] == [image.tobytes() for image in theirs]
    pixels[1, 0, 0, 0] = np.nan
    with pytest.raises(SessionError, match="half precision"):
        to_pictures(pixels)


def test_info_of_a_picture_imports_no_heavy_library(tmp_path, image):
    path = save(tmp_path, image, RECORD)
    code = (
        "import sys; from olivelike.cli.app import run_command_line\n"
        f"run_command_line(['info', {str(path)!r}])\n"
        "print([name for name in ('torch', 'numpy', 'diffusers', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert "seed          42" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
