"""What messages have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

import olivelike
from olivelike._text import did_you_mean, quoted


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("flaot16", ["convert", "float16"], "did you mean 'float16'?"),
        ("DirectMl", ["cuda", "directml"], "did you mean 'directml'?"),
        ("euler", ["Euler a", "Euler"], "did you mean 'Euler'?"),
        ("z", ["one", "two"], "passes: one, two"),
        ("z", [f"name{index}" for index in range(26)], "name22, name23 and 2 more"),
        ("z", [], "there are no passes"),
        ("o" * 501, ["o" * 500], f"passes: {'o' * 500}"),
    ],
)
def test_a_message_about_an_unknown_name_ends_with_the_nearest_or_with_what_there_is(name, known, end):
    assert did_you_mean(name, known, "passes").endswith(end)
    assert did_you_mean(name, iter(known), "passes") == did_you_mean(name, known, "passes")


@pytest.mark.parametrize(
    ("word", "posix", "windows"),
    [
        (Path("a.png"), "a.png", "a.png"),
        ("my model", "'my model'", '"my model"'),
        ("it's $HOME;x", "'it'\"'\"'s $HOME;x'", '"it\'s $HOME;x"'),
        (r"C:\a\b", r"'C:\a\b'", r"C:\a\b"),
        ("-o", "./-o", "./-o"),
        ("", "''", '""'),
    ],
)
def test_a_path_in_a_command_is_one_word(monkeypatch, word, posix, windows):
    for on_windows, expected in ((False, posix), (True, windows)):
        monkeypatch.setattr("olivelike._text._WINDOWS", on_windows)
        assert quoted(word) == expected


def test_nearest_names_are_looked_for_in_one_place():
    package = Path(olivelike.__file__).parent
    users = [path for path in package.rglob("*.py") if "difflib" in path.read_text(encoding="utf-8")]
    assert users == [package / "_text.py"]
