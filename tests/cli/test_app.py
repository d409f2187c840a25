from __future__ import annotations

import gc
import os
import re
import shlex
import sys
import time
from pathlib import Path

import pytest

from olivelike._extras import commands
from olivelike.cli.app import COMMANDS
from olivelike.cli.display.help_pages import GROUPS as HELP_GROUPS, OPTION_GROUPS, option_groups

GROUPS = {
    "passes": ["list", "show", "new"],
    "cache": ["ls", "size", "verify", "gc", "clear", "pin", "unpin"],
    "shelf": ["list", "add", "verify"],
}
for words in map(str.split, commands()):
    if words[1:]:
        GROUPS[words[0]].append(words[1])
PATHS = [[name] for name in COMMANDS] + [[group, name] for group, names in GROUPS.items() for name in names]


def test_help_lists_every_command_with_its_purpose(cli):
    result = cli("--help")
    assert result.status == 0
    groups = result.out.partition("\nMake:")[2]
    listed = re.findall(r"^  ([a-z-]+)  +(\S.*)$", groups, re.MULTILINE)
    assert [name for name, _ in listed] == list(COMMANDS)
    assert re.findall(r"^(\S.*):$", groups, re.MULTILINE) == [*list(HELP_GROUPS)[1:], "Example"]
    assert not [purpose for _, purpose in listed if purpose.endswith("...")]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_describes_itself_and_each_of_its_options(cli, path):
    result = cli(*path, "--help")
    assert result.status == 0
    assert result.out.startswith(f"Usage: olivelike {' '.join(path)} ")
    options = re.findall(r"^  (--\S+)(?: [^ ]+)*(.*)$", result.out, re.MULTILINE)
    undescribed = re.findall(r"^  (--\S+(?: \S+)?)\n  -", result.out, re.MULTILINE)
    assert path[0] in GROUPS or options
    assert not undescribed
    assert "[[" not in result.out
    assert not re.search(r"<(str|path|int|list\[)", result.out)


@pytest.mark.parametrize("path", [[], *PATHS], ids=" ".join)
def test_every_help_ends_with_an_example_that_the_command_understands(cli, path):
    text = cli(*path, "--help").out
    *_, title, example = text.splitlines()
    assert title == "Example:"
    words = shlex.split(example)
    assert words[: len(path) + 1] == ["olivelike", *path]
    named = path or [words[1]]
    known = cli(*named, *([words[2]] if named[0] in GROUPS and len(named) == 1 else []), "--help").out
    assert not [word for word in words if word.startswith("-") and f"{word} " not in known.replace(",", " ")]
    assert "{" not in text.partition("\n")[0]


@pytest.mark.parametrize("command", OPTION_GROUPS)
def test_options_of_a_long_help_stand_in_groups_each_once(cli, command):
    text = cli(command, "--help").out
    named = [name for names in option_groups(command).values() for name in names]
    assert len(set(named)) == len(named)
    assert [title for title in re.findall(r"^(\S.*):$", text, re.MULTILINE) if title in OPTION_GROUPS[command]] == list(
        OPTION_GROUPS[command]
    )
    found = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text.partition("\nExample:")[0], re.MULTILINE)
    assert sorted(found) == sorted([*named, *re.findall(r"(--help)\b", text)])
    rest = text.partition("\nOptions:\n")[2].partition("\nExample:")[0]
    assert rest.split() == ["-h,", "--help", "Show", "this", "message", "and", "exit."], "each option is in a group"


def test_the_help_of_a_group_shows_whole_sentences(cli):
    for group in GROUPS:
        assert "..." not in cli(group, "--help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "error: Missing argument 'WORKFLOW'.\n  `olivelike run --help` says what it takes\n"),
        (("run", "x", "--onyl", "unet"), "error: No such option: --onyl"),
        (("run", "x", "--workers", "two"), "error: Invalid value for '--workers': "),
        (("convert", "x", "--precision", "int4"), "error: Invalid value for '--precision': 'int4' is not one of"),
        (("cache", "sise"), "error: No such command 'sise'. Did you mean 'size'?\n  `olivelike cache --help`"),
    ],
)
def test_a_command_line_that_can_not_be_read_is_an_error_like_any_other(cli, words, said):
    result = cli(*words)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(said)


def test_no_command_shows_the_help_and_ends_with_status_2(cli):
    result = cli()
    assert result.status == 2
    assert "\nMake:\n" in result.out + result.err
    assert "error:" not in result.err


def test_a_mistyped_command_gets_a_suggestion(cli):
    result = cli("rnu")
    assert result.status == 2
    assert "Did you mean 'run'?" in result.err


def test_the_version_is_that_of_the_distribution(cli):
    from importlib.metadata import version

    assert cli("--version").out == f"olivelike {version('olivelike')}\n"


def test_a_bug_leaves_its_traceback_in_a_log_that_the_message_names(cli, monkeypatch, tmp_path):
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("seven")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("olivelike.workflow.json_schema", fail)
    result = cli("schema")
    assert result.status == 1
    assert result.err.startswith("error: ZeroDivisionError: seven\n")
    assert "Traceback" not in result.err
    log = Path(re.search(r"traceback in (.+)$", result.err, re.MULTILINE)[1])
    assert log.parent == tmp_path
    assert "Traceback" in log.read_text()
    assert "in fail" in log.read_text()


def test_an_interrupted_command_ends_with_status_130(cli, monkeypatch):
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("olivelike.workflow.json_schema", interrupt)
    result = cli("schema")
    assert result.status == 130
    assert result.err == "error: interrupted\n"


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_leaves_ends_a_command_quietly(start):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("schema", stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert process.returncode == 141
    assert err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_standard_output_is_an_error_not_a_bug(start):
    with Path("/dev/full").open("w") as full:
        process = start("schema", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 3
    assert err == "error: standard output can't be written: No space left on device\n"


def test_completion_knows_commands_and_shipped_workflows(capsys, cli, monkeypatch, empty_folder):
    monkeypatch.setenv("_OLIVELIKE_COMPLETE", "complete_bash")
    for words, wanted in [("olivelike val", "validate"), ("olivelike run sd15_dir", "sd15_directml")]:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert cli().out.split() == [wanted]


def test_completion_of_a_workflow_offers_files_and_folders(cli, monkeypatch, empty_folder):
    (empty_folder / "mine.yaml").touch()
    (empty_folder / "mine").mkdir()
    monkeypatch.setenv("_OLIVELIKE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "olivelike run mi")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert set(cli().out.split()) == {"mine.yaml", "mine/"}


def test_a_command_that_takes_long_looks_for_garbage_as_usual(monkeypatch):
    from olivelike import cli
    from olivelike.cli import app

    before = gc.get_threshold()

    def command() -> int:
        deadline = time.monotonic() + 10
        while gc.get_threshold()[0] != 700 and time.monotonic() < deadline:
            time.sleep(0.01)
        return gc.get_threshold()[0]

    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))  # Of all tests before it would stay what is garbage.
    monkeypatch.setattr(cli, "_SHORT_SECONDS", 0.05)
    monkeypatch.setattr(app, "run_command_line", command)
    monkeypatch.setattr(sys, "argv", ["olivelike", "doctor"])
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        gc.set_threshold(*before)
    assert ended.value.code == 700
    assert frozen == [True]
