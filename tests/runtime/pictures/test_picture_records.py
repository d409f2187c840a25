"""What a picture says of how it was made: our own record, and A1111's text."""

from __future__ import annotations

import json
import string
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from picture_samples import PLAIN, RECORD, save
from PIL import Image, ImageChops
from PIL.PngImagePlugin import PngInfo

from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pictures import UsedFile, is_picture, read_picture, read_picture_record
from olivelike.runtime.pictures.picture_record import a1111_text, record_from_json
from olivelike.runtime.pictures.recipe_text import parse_a1111
from tests.fixtures.characters import CHARACTERS


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
        'a (red:1.2) "circle", 東京 🎉\non a: background <lora:ink, wet:0.8> <lora:line:1>\n'
        "Negative prompt: blurry,\nugly\n"
        "Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7.5, CFG Rescale: 0.25, Seed: 42, "
        "Size: 64x96, Model hash: 0123456789, Model: demo, Denoising strength: 0.75, Clip skip: 2, Eta: 0.5, "
        'Emphasis: None, Lora hashes: "ink, wet: 0123456789ab, line: abcdef012345", RNG: CPU, '
        "Version: olivelike 0.1.0"
    )


def test_loras_beside_the_prompt_are_in_the_text_as_a1111_names_them():
    loras = (UsedFile("ink", "0123456789ab", 0.35), UsedFile("wash", None, 1.0))
    record = replace(PLAIN, prompt="a fish <lora:styles/ink:0.8>", loras=loras)
    assert a1111_text(record).splitlines()[0] == "a fish <lora:styles/ink:0.8> <lora:wash:1>"
    assert a1111_text(replace(record, prompt_weights=False)).splitlines()[0] == a1111_text(record).splitlines()[0]


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_record_of_before_counts_layers_that_are_left_out(skipped):
    told = {name: value for name, value in json.loads(RECORD.to_json()).items() if name != "clip_layer"}
    assert record_from_json(json.dumps({**told, "clip_skip": skipped}), "x").clip_layer == skipped + 1


def test_the_text_of_a_picture_by_a1111_is_understood():
    found = parse_a1111(
        "photo of a cat, <lora:ink:0.8>\r\nhigh quality\r\nNegative prompt: bad,\n  worse \n"
        "Steps: 30, Sampler: DPM++ 2M SDE, Schedule type: Karras, CFG scale: 7, Seed: 1234567890, Size: 512x768, "
        'Model hash: 6ce0161689, Model: "v1, pruned: yes", VAE: x.pt, Clip skip: 2, Hires upscale: 2, '
        'Lora hashes: "ink: aabbccddeeff, wet: 112233445566", Version: v1.10.1'
    )
    assert (found.prompt, found.negative_prompt) == ("photo of a cat, <lora:ink:0.8>\nhigh quality", "bad,\nworse")
    assert (found.steps, found.seed, found.width, found.height) == (30, 1234567890, 512, 768)
    assert (found.scheduler, found.guidance_scale, found.clip_layer) == ("DPM++ 2M SDE Karras", 7.0, 2)
    assert (found.model, found.model_hash, found.version) == ("v1, pruned: yes", "6ce0161689", "v1.10.1")
    assert found.loras == (UsedFile("ink", "aabbccddeeff"), UsedFile("wet", "112233445566"))
    assert found.other == {"VAE": "x.pt", "Hires upscale": "2"}


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


lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=30).map(str.strip)
prompts = st.lists(lines, min_size=1, max_size=3).map("\n".join).map(str.strip)
names = st.text(string.printable + "é東", min_size=1, max_size=20).filter(lambda text: "\0" not in text)


@settings(max_examples=60, deadline=None)
@given(
    prompt=prompts.filter(lambda text: "Negative prompt:" not in text),
    negative=st.none() | prompts.filter(lambda text: text and "Negative prompt:" not in text),
    model=names,
    scale=st.floats(0, 100),
    seed=st.integers(0, 2**64 - 1),
)
def test_a1111_s_text_leads_back_to_what_was_written(prompt, negative, model, scale, seed):
    record = replace(
        PLAIN, prompt=prompt, negative_prompt=negative, model=model, guidance_scale=scale, seed=seed,
        scheduler="Euler a", other={"RNG": "CPU"},
    )  # fmt: skip
    assert parse_a1111(a1111_text(record)) == record


@settings(max_examples=60, deadline=None)
@given(prompt=st.text(CHARACTERS), model=st.none() | st.text(CHARACTERS))
def test_the_record_leads_back_to_what_was_written(prompt, model):
    record = replace(PLAIN, prompt=prompt, model=model)
    assert record_from_json(record.to_json(), "here") == record


def test_prompts_that_no_text_can_hold_are_written_all_the_same_and_read_as_one_that_a_text_can(tmp_path, image):
    record = replace(PLAIN, prompt="a\0b \ud800\nNegative prompt: c")
    for name in ("a.png", "a.jpg"):
        found = read_picture_record(save(tmp_path, image, record, name))
        assert found == replace(record, prompt="a\0b ?\nNegative prompt: c")


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
    exif.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0" + text.replace("東", "").encode()
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
