"""Jobs for `olivelike generate` as arguments, files and standard input give them, and what they name."""

from __future__ import annotations

import io
import json

import pytest

from olivelike.runtime.pictures import read_picture
from tests.fixtures.little_pipeline import little_checkpoint


def records(folder):
    return [read_picture(path).record for path in sorted(folder.glob("*.png"))]


def test_a_note_quotes_a_prompt_as_it_was_written(generate):
    result = generate(r"a \(b\) <hypernet:c:1>")
    assert result.err.startswith(r"note: the prompt 'a \(b\) <hypernet:c:1>': taken as words: <hypernet:c:1> (")


def test_jobs_from_standard_input_are_drawn_with_their_options(generate, empty_folder, monkeypatch):
    text = "a cat\n--prompt 'a dog' --seed 9 --size 40x24 --steps 1 --negative_prompt bad\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    result = generate("-", "--seed", 3, "--json")
    assert result.status == 0, result.err
    told = [json.loads(line) for line in result.out.splitlines()]
    assert [event["event"] for event in told].count("opening") == 1
    assert {(event["batch"], event["batches"]) for event in told if event["event"] == "step"} == {(1, 2), (2, 2)}
    found = records(empty_folder / "pictures")
    assert [(r.prompt, r.seed, r.steps, r.width, r.negative_prompt) for r in found] == [
        ("a cat", 3, 2, 32, None), ("a dog", 9, 1, 40, "bad"),
    ]  # fmt: skip


def test_a_line_that_asks_for_what_cant_be_had_is_named(generate, empty_folder):
    (empty_folder / "p.txt").write_text("a\n--prompt b --size 33x32\n")
    result = generate("@p.txt")
    assert result.status == 2
    assert result.err.startswith("error: p.txt:2: --size 33x32: this pipeline makes sides that are multiples of 4")


def test_a_choice_is_made_for_each_picture_and_recorded(generate, empty_folder):
    (empty_folder / "wildcards").mkdir()
    (empty_folder / "wildcards" / "shape.txt").write_text("circle\nsquare\nstar\n")
    result = generate("a {red|blue} __shape__", "-n", 6, "--batch-size", 6, "--seed", 1)
    assert (result.status, result.err) == (0, "")
    prompts = [record.prompt for record in records(empty_folder / "pictures")]
    assert len(set(prompts)) > 1
    assert all("{" not in prompt and "_" not in prompt for prompt in prompts)
    again = generate("--from", "pictures/00004-4.png", "-o", "again.png", steps=())
    assert again.status == 0, again.err
    assert (empty_folder / "again.png").read_bytes() == (empty_folder / "pictures/00004-4.png").read_bytes()


def test_a_lora_that_a_prompt_names_is_merged_and_recorded(generate, empty_folder):
    from olivelike.testing.lora_files import make_lora

    (empty_folder / "loras" / "some").mkdir(parents=True)
    lora = make_lora(
        empty_folder / "loras" / "some" / "style.safetensors", "kohya", base=little_checkpoint(), alpha=64.0
    )
    tagged = generate("a red circle<lora:style:0.5>", "a red circle", "--seed", 1, "-o", "{index}.png", "--no-safety")
    opened = [line for line in tagged.out.splitlines() if line.startswith("Opening ")]
    assert [line.endswith(" with style at 0.5 …") for line in opened] == [True, False]
    assert tagged.out.count("nothing looks at the pictures") == 1
    assert (tagged.status, tagged.err) == (0, "")
    named = generate("a red circle", "--lora", f"{lora}:0.5", "--seed", 1, "-o", "named/{index}.png")
    assert named.status == 0, named.err
    pixels = [_pixels(path) for path in ("1.png", "2.png", "named/1.png")]
    assert pixels[0] == pixels[2] != pixels[1]
    first, second = records(empty_folder)
    assert (first.prompt, second.prompt) == ("a red circle<lora:style:0.5>", "a red circle")
    ((used,), none) = first.loras, second.loras
    assert ((used.name, used.weight), none) == (("style", 0.5), ())
    text = read_picture(empty_folder / "1.png").parameters
    assert text.startswith("a red circle<lora:style:0.5>\n")
    assert f'Lora hashes: "style: {used.hash}"' in text
    again = generate("--from", "1.png", "-o", "again.png", steps=())
    assert (again.status, again.err) == (0, "")
    assert (empty_folder / "again.png").read_bytes() == (empty_folder / "1.png").read_bytes()
    split = generate(r"a red circle<lora:some\style:0:0.5>", "--seed", 1, "-o", "split.png")
    assert split.status == 0, split.err
    assert _pixels("split.png") not in pixels


def _pixels(path):
    from PIL import Image

    with Image.open(path) as image:
        return image.tobytes()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("a <lora:stile:1>",), 3, "<lora:stile:1>: there is no LoRA of that name; did you mean 'style'?"),
        ((r"a <lora:far\stile:1>",), 3, "no LoRA of that name; did you mean 'style'?"),
        (("a <lora:../secret:1>",), 3, "there is no LoRA of that name"),
        (("a <lora:twin:1>",), 2, "both have the name"),
        (("a <lora:style:x>",), 2, "x is no weight"),
        (("a", "--lora-dir", "nowhere"), 3, "--lora-dir nowhere: no such folder"),
        (("a __colour__", "--wildcard-dir", "loras"), 2, "prompt: there is no wildcard __colour__ (a file colour.txt)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_a_prompt_names_and_is_not_there_is_said_before_anything_is_opened(
    generate, empty_folder, monkeypatch, arguments, status, message
):
    monkeypatch.setattr("olivelike.runtime.pipeline.networks.open_session", None)
    for name in ("loras/style", "loras/a/twin", "loras/b/twin", "secret"):
        (empty_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (empty_folder / f"{name}.safetensors").touch()
    result = generate(*arguments)
    assert result.status == status
    assert message in result.err


def test_what_is_taken_as_words_is_noted_and_the_picture_made(generate):
    result = generate("a __colour__ <hypernet:x:1>", "--negative-prompt", "b AND c", "--seed", 1)
    assert result.status == 0
    first, second = result.err.splitlines()
    assert first.startswith("note: the prompt 'a __colour__ <hypernet:x:1>': taken as words: <hypernet:x:1>")
    assert second.startswith("note: the negative prompt: taken as words: AND")
    (plain,) = generate("a __colour__ <hypernet:x:1>", "--plain-prompts").err.splitlines()
    assert "taken as words: __colour__ (no such file in wildcards/" in plain
    assert generate(r"a \__colour__ <hypernet:x:1>", "--plain-prompts").err == ""


def test_seed_minus_one_draws_one(generate, empty_folder):
    (empty_folder / "p.txt").write_text("--prompt a --seed -1\n")
    assert generate("a", "b", "@p.txt", "--seed", -1).status == 0
    first, second, third = (record.seed for record in records(empty_folder / "pictures"))
    assert first == second >= 0
    assert third != first


def test_other_programs_names_of_options_are_taken_by_the_command_as_by_lines(generate, empty_folder):
    ours = ("--guidance-scale", 4, "--scheduler", "Euler a", "--size", "40x24", "--seed", 3)
    assert generate("a red circle", *ours, "-o", "a.png").status == 0
    first = (empty_folder / "a.png").read_bytes()
    for number, theirs in enumerate((
        ("--cfg-scale", 4, "--sampler", "Euler a", "--width", 40, "--height", 24, "--seed", 3),
        ("--cfg=4", "--sampler_name", "Euler a", "--width=40", "--height=24", "--seed=3"),
    )):  # fmt: skip
        made = generate("a red circle", *theirs, "-o", f"{number}.png")
        assert made.status == 0, made.err
        assert (empty_folder / f"{number}.png").read_bytes() == first
    (empty_folder / "lines.txt").write_text(
        '--prompt "a red circle" --cfg 4 --sampler "Euler a" --width 40 --height 24 --seed 3\n'
    )
    assert generate("@lines.txt", "-o", "line.png").status == 0
    assert (empty_folder / "line.png").read_bytes() == first
    for wrong in (("--width", 40), ("--width", 40, "--height", 24, "--size", "40x24")):
        refused = generate("a", *wrong)
        assert (refused.status, "--width and --height, both of them" in refused.err) == (2, True)
    assert generate("--plain-prompts", "--", "--cfg").status == 0
