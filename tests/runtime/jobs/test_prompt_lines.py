"""Prompts as arguments, files and standard input give them."""

from __future__ import annotations

import io

import pytest

from olivelike.errors import OlivelikeError, SourceError
from olivelike.runtime.jobs import PromptLine, read_prompts


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_has_a_job_on_each_line(empty_folder):
    (empty_folder / "p.txt").write_bytes("\ufeffa cat\r\n\r\n# no job\r\n  a dog, 16:9 \r\n".encode())
    found = read_prompts(["first", "@p.txt"])
    assert [(line.prompt, line.place) for line in found] == [
        ("first", None), ("a cat", "p.txt:1"), ("a dog, 16:9", "p.txt:4"),
    ]  # fmt: skip


def test_a_line_has_the_options_of_a1111_s_script(empty_folder):
    (empty_folder / "p.txt").write_text(
        '--prompt "a cat" in a hat --negative_prompt "bad, worse" --seed 3 --steps 10 --cfg_scale 5.5 '
        '--sampler_name "Euler a" --width 48 --height 32 --batch_size 2 --n_iter 3\n'
        "--prompt x --size 32x64 --num-images 4 --scheduler DDIM --clip-skip 2\n"
    )
    first, second = read_prompts(["@p.txt"])
    assert first.prompt == "a cat in a hat"
    assert first.fields == {
        "negative_prompt": "bad, worse", "seed": 3, "steps": 10, "guidance_scale": 5.5, "scheduler": "Euler a",
        "size": (48, 32), "batch_size": 2, "num_images": 6,
    }  # fmt: skip
    assert second.fields == {"size": (32, 64), "num_images": 4, "scheduler": "DDIM", "clip_layer": 2}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--prompt it's", "p.txt:2: No closing quotation; put quotes around"),
        ("--seed 3", "p.txt:2: has no --prompt"),
        ("--prompt a --sed 3", "there is no option --sed for a line; did you mean '--seed'?"),
        ("--prompt a --tiling true", "there is no option --tiling"),
        ("--prompt a --seed", "--seed has no value"),
        ("--prompt a --seed x", "--seed 'x' is no number"),
        ("--prompt a --seed 3 4", "'4' belongs to no option"),
        ("--prompt a --width 64", "gives one side alone"),
    ],
)
def test_a_line_that_cant_be_read_is_named(empty_folder, line, message):
    (empty_folder / "p.txt").write_text(f"\n{line}\n")
    with pytest.raises(OlivelikeError, match="p.txt:2") as caught:
        read_prompts(["@p.txt"])
    assert message in str(caught.value)


def test_prompts_without_end_are_refused(empty_folder, monkeypatch):
    with open("/dev/zero", "rb") as endless:  # noqa: PTH123
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(endless))
        with pytest.raises(SourceError, match="standard input: has more than the 16,777,216 bytes"):
            read_prompts(["-"])
    (empty_folder / "large.txt").symlink_to("/dev/zero")
    with pytest.raises(SourceError, match=r"large\.txt: has more than the 16,777,216 bytes"):
        read_prompts(["@large.txt"])


def test_prompts_that_only_look_like_files_stay_prompts(empty_folder, monkeypatch):
    assert read_prompts([r"\-", r"\@p.txt", "@home with cats", "@"]) == [
        PromptLine(r"\-"), PromptLine(r"\@p.txt"), PromptLine("@home with cats"), PromptLine("@"),
    ]  # fmt: skip
    assert read_prompts(["-", "@p.txt"], literal=True) == [PromptLine("-"), PromptLine("@p.txt")]
    for content, message in ((None, "No such file"), (b"\xff\xfe", "no text in UTF-8"), (b"#\n", "has no prompt")):
        if content is not None:
            (empty_folder / "p.txt").write_bytes(content)
        with pytest.raises(OlivelikeError, match=message):
            read_prompts(["@p.txt"])


def test_a_line_for_the_samples_of_a_training_has_short_options_behind_its_prompt(empty_folder):
    (empty_folder / "p.txt").write_text(
        "a cat --n blurry, bad --w 48 --h 32 --d 7 --s 2 --l 6.5 --ss k_euler_a\na dog -- that is --all\n"
    )
    first, second = read_prompts(["@p.txt"])
    assert first == PromptLine(
        "a cat",
        {
            "negative_prompt": "blurry, bad", "size": (48, 32), "seed": 7, "steps": 2, "guidance_scale": 6.5,
            "scheduler": "k_euler_a",
        },
        "p.txt:1",
    )  # fmt: skip
    assert second == PromptLine("a dog -- that is --all", place="p.txt:2")
    for line, message in (
        ("a cat --w 48 --h 32 --cn edges.png", "there is no option --cn behind a prompt"),
        ("a cat --d x", "--d 'x' is no number"),
        ("a cat --s 3 --d", "--d has no value"),
        ("a cat --w 48", "gives one side alone"),
    ):
        (empty_folder / "p.txt").write_text(line)
        with pytest.raises(OlivelikeError, match="p.txt:1") as caught:
            read_prompts(["@p.txt"])
        assert message in str(caught.value)
