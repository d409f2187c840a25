"""What prompts leave to the seed, the LoRAs that they name, and what is said of the rest."""

from __future__ import annotations

import os

import pytest

from olivelike.errors import SourceError, UsageError
from olivelike.runtime.jobs.job_notes import unread
from olivelike.runtime.prompts.syntax import LoraTag, take_lora_tags
from olivelike.runtime.prompts.wildcards import Wildcards


@pytest.fixture
def wildcards(tmp_path):
    (tmp_path / "colour.txt").write_text("\ufeffred\n# a comment\n\n blue \n{dark|light} green\n", "utf-8")
    (tmp_path / "animal").mkdir()
    (tmp_path / "animal" / "cat.txt").write_text("tabby")
    (tmp_path / "loop.txt").write_text("__loop__")
    return Wildcards([tmp_path], named=True)


def chosen(wildcards, prompt, seeds=60):
    return {wildcards.resolve(prompt, seed) for seed in range(seeds)}


def test_choices_are_made_by_the_seed(wildcards):
    assert chosen(wildcards, "a {red|blue} c") == {"a red c", "a blue c"}
    assert chosen(wildcards, "{a|{b|c}}") == {"a", "b", "c"}
    assert chosen(wildcards, "__colour__") == {"red", "blue", "dark green", "light green"}
    assert chosen(wildcards, "__cat__ __animal/cat__ __animal/*__") == {"tabby tabby tabby"}
    assert wildcards.resolve("{a|b|c|d}", 7) == wildcards.resolve("{a|b|c|d}", 7)


@pytest.mark.skipif(os.name != "posix", reason="links need a right on Windows")
def test_links_are_not_followed(wildcards, tmp_path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.txt").write_text("a line")
    (tmp_path / "link.txt").symlink_to(elsewhere / "secret.txt")
    (tmp_path / "folder").symlink_to(elsewhere)
    for name in ("link", "secret", "folder/secret"):
        with pytest.raises(UsageError, match=rf"there is no wildcard __{name}__ \(a file {name}.txt\)"):
            wildcards.resolve(f"__{name}__", 1)
    (tmp_path / "named").symlink_to(elsewhere)  # The user has named this one.
    assert Wildcards([tmp_path / "named"], named=True).resolve("__secret__", 1) == "a line"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_among_the_files_is_not_waited_for(wildcards, tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(SourceError, match="only regular files are read"):
        wildcards.resolve("__pipe__", 1)


def test_several_can_be_chosen_and_weighed(wildcards):
    assert chosen(wildcards, "{2$$a|b}") == {"a, b", "b, a"}
    assert chosen(wildcards, "{1-2$$ and $$a|b}") == {"a", "b", "a and b", "b and a"}
    assert chosen(wildcards, "{0::a|2.5::b}") == {"b"}


def test_weights_of_a_file_are_read_once_and_lines_alike_are_not_gone_through(tmp_path):
    (tmp_path / "tags.txt").write_text("\n".join(f"tag{number}" for number in range(1000)))
    (tmp_path / "rare.txt").write_text("0.5::a\nb\n2::c\n")
    known = Wildcards([tmp_path], named=True)
    tags = known.weighed("tags")
    assert known.weighed("tags") is tags
    assert [tags.place(share) for share in (0.0, 0.0005, 0.001, 0.9999)] == [0, 0, 1, 999]
    assert [known.weighed("rare").place(share / 7) for share in range(7)] == [0, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    "text",
    ["{x} {{y}}", r"\{a|b\}", r"\__colour__", "[a|b] (c:1.2) :} {:", "snake_case ___ _a_ x__colour__y", "{a|b", "a|b}"],
)
def test_other_braces_and_underscores_are_text(wildcards, text):
    assert chosen(wildcards, text, 5) == {text}


@pytest.mark.parametrize("text", ["__loop__", "{3$$a|b}", "{" * 99 + "a|b" + "}" * 99, "__color__"])
def test_choices_that_cant_be_made_are_refused(wildcards, text):
    with pytest.raises(UsageError):
        wildcards.resolve(text, 1)


def test_files_of_choices_that_cant_be_read_are_named(tmp_path):
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(SourceError, match=r"empty\.txt: has no line"):
        Wildcards([tmp_path]).resolve("__empty__", 1)
    with pytest.raises(SourceError, match="--wildcard-dir .*nowhere: no such folder"):
        Wildcards([tmp_path / "nowhere"], named=True).resolve("__a__", 1)
    assert Wildcards([tmp_path / "nowhere"]).resolve("__init__", 1) == "__init__"


def test_files_that_double_each_other_are_refused_at_once(tmp_path):
    for number in range(30):
        (tmp_path / f"e{number}.txt").write_text(f"__e{number + 1}__ __e{number + 1}__")
    (tmp_path / "e30.txt").write_text("x")
    with pytest.raises(UsageError, match="its choices lead to more than 10,000 others"):
        Wildcards([tmp_path]).resolve("__e0__", 1)


def test_a_pipe_a_device_and_an_endless_file_give_no_choices(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "device.txt").symlink_to("/dev/zero")
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(1 << 40)
    assert Wildcards([tmp_path]).resolve("__device__", 1) == "__device__"  # A link is not followed.
    for name in ("pipe", "large"):
        with pytest.raises(SourceError, match="only regular files are read|at most 16,777,216 are read"):
            Wildcards([tmp_path]).resolve(f"__{name}__", 1)


def test_tags_of_loras_are_taken_out_of_a_prompt():
    prompt = "a <lora:style:0.8>cat, <lora:a b> <lyco:x:0.5:0> <lora:y:te=1:unet=.25>"
    text, tags = take_lora_tags(prompt)
    assert text == "a cat,   "
    assert [(tag.name, tag.text_weight, tag.unet_weight) for tag in tags] == [
        ("style", 0.8, 0.8), ("a b", 1.0, 1.0), ("x", 0.5, 0.0), ("y", 1.0, 0.25),
    ]  # fmt: skip
    assert tags[0] == LoraTag("style", 0.8, 0.8, "<lora:style:0.8>")
    assert take_lora_tags(r"\<lora:x:1> <3 a<b>") == ("<lora:x:1> <3 a<b>", ())


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("<lora:style:abc>", "abc is no weight"),
        ("<lora:style:>", "nothing is no weight"),
        ("<lora:style:inf>", "inf is no weight"),
        ("<lora: :1>", "names no LoRA"),
        ("<lora:style:1:1:8>", "dyn"),
        ("<lora:style:lbw=ALL>", "lbw is nothing that a LoRA has here"),
    ],
)
def test_tags_that_say_something_else_are_refused(tag, message):
    with pytest.raises(UsageError, match=message):
        take_lora_tags(f"a {tag}")


@pytest.mark.parametrize(
    "prompt",
    [
        "(a:1.2) ((b)) [c] [[d]] \\(e\\) BREAK AND f :) :( :-] ;[ <3 >_< ^_^ (>_<) {^_^}",
        "[red:blue:0.5] [a|b] {x|y} <lora:style:1> <token>",
        "16:9, f/1.8, 3.5mm -- high quality, T-shirt, --- 2x--zoom",
        r"\<hypernet:x:1> \__name__ \--seed",
        "snake_case __ a__b__c _emphasis_",
        "",
    ],
)
def test_ordinary_prompts_bring_no_note(prompt):
    assert unread(prompt, Wildcards(())) is None


def test_what_is_taken_as_words_is_named_in_one_line():
    note = unread("a <hypernet:x:1> __colour__ ${c=red} embedding:bad --steps 3 --clip-skip 2", Wildcards(()))
    assert "\n" not in note
    for written in ("<hypernet:x:1>", "__colour__", "${c=red}", "embedding:bad", "--steps", "--clip-skip"):
        assert written in note
    assert "taken as words" in note
    assert "a backslash before it" in note
    note = unread("a AND b, {x|y}, <lora:z:1>", Wildcards(()), negative=True)
    assert note.startswith("the negative prompt: taken as words: <lora:z:1>")
    assert "AND (only prompts are composed" in note
    assert "{x|y} (choices" in note
