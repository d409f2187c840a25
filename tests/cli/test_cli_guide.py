from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from olivelike import errors
from olivelike.cli.app import COMMANDS, READER_LEFT

GUIDE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
EXAMPLES = re.search(r"## Running\n```\n(.+?)```", GUIDE, re.DOTALL)[1].splitlines()


def test_the_guide_has_every_command():
    written = re.findall(r"^\| `olivelike ([\w-]+)", GUIDE, re.MULTILINE)
    assert [name for name in written if name in COMMANDS] == list(COMMANDS), "in this order; extras may be missing"


def test_the_guide_has_every_option_of_run(cli):
    options = re.findall(r"^  (--[a-z-]+)", cli("run", "--help").out, re.MULTILINE)
    assert not [option for option in options if option not in GUIDE]


def test_the_guide_has_every_exit_status():
    written = {int(number) for number in re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)}
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    statuses = {cls.exit_code for cls in classes if issubclass(cls, errors.OlivelikeError)}
    assert written == {0, READER_LEFT} | statuses


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_understood(cli, example, monkeypatch):
    received = []
    monkeypatch.setattr(
        "olivelike.engine.run.run", lambda ref, options, listener, report: received.append(ref) or _result()
    )
    _, *arguments = shlex.split(example)
    assert cli(*arguments).status == 0
    assert received == [arguments[1]]


def _result():
    from olivelike.engine.run_result import RunResult

    return RunResult("run", "ok", 1, 1, 0, 0.1, 0, ())
