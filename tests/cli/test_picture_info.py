from __future__ import annotations

import json
import re

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from olivelike.runtime.pictures import PictureRecord, PictureWriter, UsedFile

RECORD = PictureRecord(
    "a red circle\x1b[31m", "blurry", 20, "Euler a", "Euler a", seed=7, width=8, height=8, model="demo",
    loras=(UsedFile("ink", "0123", 0.5),), version="olivelike 0.1.0",
)  # fmt: skip


@pytest.fixture
def picture(tmp_path):
    # The name says nothing: pictures are known by their content.
    path = PictureWriter(tmp_path / "a.png").save(Image.new("RGB", (8, 8)), RECORD)
    return path.rename(tmp_path / "a.safetensors")


def test_info_says_what_made_a_picture(cli, picture):
    result = cli("info", str(picture))
    assert result.status == 0
    assert "a picture, PNG, 8x8" in result.out
    told = dict(re.split(r" {2,}", line, maxsplit=1) for line in result.out.splitlines() if "  " in line)
    shown = {"Seed": "7", "Sampler": "Euler a", "LoRA 1": "ink at 0.5 (0123)", "Negative prompt": "blurry"}
    assert told.items() >= shown.items()
    assert "\x1b" not in result.out


def test_info_gives_the_record_as_json(cli, picture):
    found = json.loads(cli("info", str(picture), "--json").out)
    assert (found["kind"], found["format"], found["record_of"]) == ("picture", "PNG", "olivelike")
    assert (found["record"]["seed"], found["record"]["loras"][0]["weight"]) == (7, 0.5)
    assert found["parameters"].startswith("a red circle")


def test_info_says_that_a_picture_has_no_record(cli, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg")
    result = cli("info", str(tmp_path / "a.jpg"))
    assert (result.status, "no record" in result.out) == (0, True)
    assert json.loads(cli("info", str(tmp_path / "a.jpg"), "--json").out)["record"] is None


def test_info_shows_the_mark_of_ai_and_an_unknown_one_by_its_name(cli, picture, tmp_path):
    assert "Marked        made by AI (trainedAlgorithmicMedia)" in cli("info", str(picture)).out.splitlines()
    assert json.loads(cli("info", str(picture), "--json").out)["digital_source_type"] == "trainedAlgorithmicMedia"
    chunks = PngInfo()
    chunks.add_itxt("XML:com.adobe.xmp", "DigitalSourceType>http://cv.iptc.org/newscodes/digitalsourcetype/dreamt")
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png", pnginfo=chunks)
    shown = cli("info", str(tmp_path / "b.png")).out.splitlines()
    assert shown[1:] == ["Marked        dreamt", "It has no record of what made it."]


def test_info_refuses_a_picture_that_is_cut_off(cli, picture):
    picture.write_bytes(picture.read_bytes()[:100])
    result = cli("info", str(picture))
    assert result.status == 3
    assert "can't be read as a picture" in result.err


HIRES = (
    "a blue star\nNegative prompt: red\nSteps: 2, Sampler: Euler, CFG scale: 6, Seed: 42, Size: 32x32, "
    "Denoising strength: 0.5, Hires upscale: 2, Hires upscaler: R-ESRGAN 4x+, RNG: GPU, Tiling: True, ENSD: 31337"
)
LEFT_OUT = (
    "not taken over, so that the picture may be another: Denoising strength 0.5, Hires upscale 2, "
    "Hires upscaler R-ESRGAN 4x+, RNG GPU, Tiling True, ENSD 31337"
)


def with_text(path, text):
    chunks = PngInfo()
    chunks.add_text("parameters", text)
    Image.new("RGB", (8, 8)).save(path, pnginfo=chunks)
    return path


def test_info_and_generate_name_what_is_not_taken_over_in_the_same_words(cli, generate, empty_folder):
    path = with_text(empty_folder / "a.png", HIRES)
    shown = cli("info", str(path))
    assert shown.out.splitlines()[-1] == LEFT_OUT
    assert json.loads(cli("info", str(path), "--json").out)["left_out"] == LEFT_OUT
    made = generate("--from", path, "-o", "b.png", steps=())
    assert made.status == 0, made.err
    notes = [line.removeprefix("note: ") for line in made.err.splitlines()]
    assert notes == [
        LEFT_OUT,
        (
            "the second pass is left out; --hires 2:0.5 --hires-steps 2 draws one, with --upscaler FILE by an upscaler "
            "that you have"
        ),
    ]


def test_info_parts_long_names_from_their_values(cli, tmp_path):
    long = "A name of more than thirty-four letters in all"
    lines = cli("info", str(with_text(tmp_path / "a.png", f"{HIRES}, {long}: 1"))).out.splitlines()
    assert f"{'Hires upscaler':<34}R-ESRGAN 4x+" in lines
    assert f"{'Seed':<34}42" in lines
    assert f"{long}  1" in lines


def test_a_text_that_is_no_recipe_is_shown_and_makes_no_picture(cli, generate, empty_folder):
    path = with_text(empty_folder / "a.png", "a cat\nNegative prompt: dog\nSettings: 20 steps")
    why = f"{path}: can't be read as a recipe: there is no line of settings in it that begins with Steps"
    lines = cli("info", str(path)).out.splitlines()
    assert lines[1].startswith(why)
    assert lines[2:] == [
        "its text      a cat",
        "              Negative prompt: dog",
        "              Settings: 20 steps",
    ]
    assert json.loads(cli("info", str(path), "--json").out)["unread"].startswith(why)
    made = generate("--from", path, steps=())
    assert made.status == 3
    assert why in made.err
