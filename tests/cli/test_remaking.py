"""What pictures of `olivelike generate` hold, and how they, and pictures of pictures, are made again."""

from __future__ import annotations

import json
import shutil

from picture_files import pixels, save
from PIL import Image

from olivelike.runtime.pictures import read_picture_record
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint


def test_a_picture_holds_what_remakes_it_exactly(generate, empty_folder):
    made = generate(
        "a (red:1.3) circle", "--negative-prompt", "dark", "--scheduler", "Euler a", "--guidance-scale", 4,
        "--seed", 11, "--size", "40x24", "--clip-skip", 2, "--guidance-rescale", 0.2, "-o", "first.png",
    )  # fmt: skip
    assert made.status == 0, made.err
    again = generate("--from", "first.png", "-o", "second.png", steps=())
    assert again.status == 0, again.err
    assert (empty_folder / "first.png").read_bytes() == (empty_folder / "second.png").read_bytes()
    other = generate("a blue circle", "--from", "first.png", "--seed", 12, "-o", "third.png", steps=())
    assert other.status == 0, other.err
    record = read_picture_record(empty_folder / "third.png")
    assert (record.prompt, record.seed, record.width, record.steps) == ("a blue circle", 12, 40, 2)
    assert (record.negative_prompt, record.clip_layer, record.scheduler) == ("dark", 2, "Euler a")


def test_a_picture_of_a_picture_wants_its_files_again(generate, empty_folder):
    (empty_folder / "far").mkdir()
    init, mask = save("far/init.png"), save("far/mask.png", mode="L", value=255)
    files = ("--init-image", init, "--mask", mask)
    assert generate("a", *files, "--strength", 0.7, "--seed", 1, "-o", "first.png").status == 0
    result = generate("--from", "first.png", "-o", "second.png", steps=())
    assert result.status == 2
    assert "was made from init.png, which is not in it, and no picture beside it or here has" in result.err
    assert "give it with --init-image" in result.err
    result = generate("--from", "first.png", *files, "-o", "second.png", steps=())
    assert (result.status, result.err) == (0, "")
    assert (empty_folder / "first.png").read_bytes() == (empty_folder / "second.png").read_bytes()
    record = read_picture_record(empty_folder / "first.png")
    assert record.strength == 0.7
    assert record.init_image.name == "init.png"
    assert len(record.init_image.hash) == 64


def test_several_initial_pictures_are_drawn_each_with_its_name(generate, empty_folder):
    (empty_folder / "in").mkdir()
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        save(f"in/{name}", value=60 * number)
    (empty_folder / "in" / "notes.txt").write_text("no picture")
    asked = ("a red circle", "--strength", 0.5, "--seed", 7)
    result = generate(*asked, "--init-image", "in")
    assert result.status == 0, result.err
    names = ["00001-a-7.png", "00002-b-7.png", "00003-c-7.png"]
    assert sorted(path.name for path in (empty_folder / "pictures").iterdir()) == names
    records = [read_picture_record(empty_folder / "pictures" / name) for name in names]
    assert [record.init_image.name for record in records] == ["a.png", "b.png", "c.png"]
    assert generate(*asked, "--init-image", "in/b.png", "-o", "alone.png").status == 0
    assert (empty_folder / "pictures" / names[1]).read_bytes() == (empty_folder / "alone.png").read_bytes()
    some = generate(*asked, "--init-image", "in/[ab].png", "--init-image", "in/c.png", "-o", "out/{initial}.png")
    assert some.status == 0, some.err
    assert sorted(path.name for path in (empty_folder / "out").iterdir()) == ["a.png", "b.png", "c.png"]
    (empty_folder / "empty").mkdir()
    none = generate(*asked, "--init-image", "empty")
    assert (none.status, "--init-image empty: there is no PNG, JPEG or WebP" in none.err) == (2, True)


def test_a_picture_s_own_pictures_are_found_by_their_content(generate, empty_folder):
    (empty_folder / "pictures").mkdir()
    init, mask = save("pictures/init.png"), save("mask.png", mode="L", value=255)
    files = ("--init-image", init, "--mask", mask)
    assert generate("a", *files, "--strength", 0.7, "--seed", 1, "-o", "out/first.png").status == 0
    (empty_folder / "pictures" / "init.png").rename(empty_folder / "out" / "renamed.jpg")
    save("pictures/init.png", value=7, mode="L")
    result = generate("--from", "out/first.png", "-o", "second.png", steps=())
    assert (result.status, result.err) == (0, "")
    assert (pixels("out/first.png") == pixels("second.png")).all()
    assert read_picture_record(empty_folder / "second.png").init_image.name == "renamed.jpg"


def test_a_folder_s_own_scheduler_without_a_name_remakes_its_pictures(generate, little, tmp_path, empty_folder):
    folder = shutil.copytree(little, tmp_path / "edm")
    config = {"_class_name": "EDMDPMSolverMultistepScheduler"}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    assert generate("a", "--seed", 1, "-o", "first.png", folder=folder).status == 0
    record = read_picture_record(empty_folder / "first.png")
    assert (record.scheduler, record.sampler) == (None, "EDMDPMSolverMultistep")
    again = generate("--from", "first.png", "-o", "second.png", folder=folder, steps=())
    assert (again.status, again.err) == (0, "")
    assert (empty_folder / "first.png").read_bytes() == (empty_folder / "second.png").read_bytes()


def test_a_picture_of_another_folder_is_noted(generate, flagging, empty_folder, little):
    assert generate("a", "--seed", 1, "-o", "cat.png").status == 0
    result = generate("--from", "cat.png", "-o", "dog.png", folder=flagging, steps=())
    assert result.err == f"note: the picture was made with {little.name}, this is little\n"


def test_a_lora_changes_the_picture_and_no_file(generate, little, empty_folder):
    lora = make_lora(empty_folder / "style.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
    before = {path: path.stat().st_mtime_ns for path in little.rglob("*")}
    for name, texts in (("plain", ()), ("style", (f"{lora}:0.5",)), ("off", (f"{lora}:0",))):
        options = [word for text in texts for word in ("--lora", text)]
        result = generate("a red circle", "--seed", 1, "-o", f"{name}.png", *options)
        assert result.status == 0, result.err
    assert (pixels("plain.png") == pixels("off.png")).all()
    assert (pixels("plain.png") != pixels("style.png")).any()
    assert {path: path.stat().st_mtime_ns for path in little.rglob("*")} == before
    (used,) = read_picture_record(empty_folder / "style.png").loras
    assert (used.name, used.weight, len(used.hash)) == ("style", 0.5, 12)
    result = generate("--from", "style.png", steps=())
    assert result.status == 2
    assert "was made with LoRAs that" in result.err
    assert "style:0.5; give them with --lora" in result.err
    result = generate("--from", "style.png", "--lora", f"{lora}:0.5", "-o", "again.png", steps=())
    assert (empty_folder / "again.png").read_bytes() == (empty_folder / "style.png").read_bytes()


def test_fit_takes_the_nearest_size_and_crops_the_picture_to_it(generate, empty_folder):
    assert generate("a", "--size", "33x45", "--fit", "--seed", 1, "-o", "a.png").status == 0
    assert pixels("a.png").shape == (44, 32, 3)
    photo = Image.new("RGB", (102, 59), (255, 0, 0))
    photo.paste((0, 0, 255), (26, 0, 76, 59))
    photo.save("photo.png")
    options = ("--init-image", "photo.png", "--strength", 0.5, "--seed", 1, "--no-safety")
    assert generate("a", *options, "--fit", "-o", "b.png").status == 0
    assert pixels("b.png").shape == (60, 104, 3)
    assert generate("a", *options, "--fit", "--size", "32x40", "-o", "c.png").status == 0
    photo.crop((27, 0, 74, 59)).save("middle.png")
    middle = ("--init-image", "middle.png", *options[2:])
    assert generate("a", *middle, "--size", "32x40", "-o", "d.png").status == 0
    assert (pixels("c.png") == pixels("d.png")).all()
    assert generate("--from", "c.png", "-o", "again.png", "--no-safety", steps=()).status == 0
    assert (empty_folder / "again.png").read_bytes() == (empty_folder / "c.png").read_bytes()
