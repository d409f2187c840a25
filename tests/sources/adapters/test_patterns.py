"""PEFT's patterns, matched as PEFT matches them and without its worst cases."""

from __future__ import annotations

import random
import re

import pytest

from olivelike.errors import SourceError
from olivelike.sources.adapters import lora_settings
from olivelike.sources.adapters.lora_settings import match_patterns

PIECES = ("a", "b", "x", ".", "\\.", "*", "+", "?", "(", ")", "|", "[ab]", "[^.]", "\\d", "\\w+", ".*", "to_q", "{1,2}",
          "{2}", "^", "$", "(?:a|b)", "*?", "{,2}", "{0}", "down_blocks", "\\d+", "(?=to_)", "++")  # fmt: skip
PATHS = ("down_blocks.0.attn1.to_q", "a.b.c", "to_q", "x", "aab.ab", "down_blocks.10.x.to_q", "a-b")


def test_any_pattern_matches_what_peft_matches():
    rng = random.Random(0)
    for _ in range(10):
        values: dict[str, int] = {}
        while len(values) < 70:
            pattern = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 7)))
            try:
                re.compile(pattern)
            except re.error:
                continue
            values[f"(?:{pattern})"] = len(values)
        expected = {
            path: next((n for p, n in values.items() if re.match(rf"(.*\.)?({p})$", path)), None) for path in PATHS
        }
        found = match_patterns("a.json", values, PATHS)
        assert {path: found.get(path) for path in PATHS} == expected
        single = dict([next(iter(values.items()))])
        assert match_patterns("a.json", single, PATHS) == {
            path: 0 for path in PATHS if re.match(rf"(.*\.)?({next(iter(single))})$", path)
        }


def test_the_first_pattern_counts_and_names_match_at_dots():
    values = {"b.c": 1, ".*c": 2, "c": 3, "^d": 4, r"e\.f": 5}
    paths = ("a.b.c", "xb.c", "c", "d", "a.d", "e.f")
    assert match_patterns("a.json", values, paths) == {"a.b.c": 1, "xb.c": 2, "c": 2, "d": 4, "e.f": 5}


def test_names_alone_start_no_process(monkeypatch):
    monkeypatch.setattr(lora_settings.subprocess, "run", None)
    assert match_patterns("a.json", {"b.c": 1}, ["a.b.c", "d"]) == {"a.b.c": 1}


@pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*x", "(a|a)*b"])
def test_patterns_that_keep_a_matcher_busy_are_given_up(pattern, monkeypatch):
    monkeypatch.setattr(lora_settings, "_SECONDS", 1.0)
    with pytest.raises(SourceError, match="take too long to match; name the modules in full"):
        match_patterns("a.json", {pattern: 1, "x": 2}, ["a" * 200 + "!"])


@pytest.mark.parametrize("pattern", ["(", "x{1,99999999999999}", r"(a)\2", "(" * 6000 + ")" * 6000, "\ud800("])
def test_patterns_that_are_none_are_refused_by_name(pattern):
    with pytest.raises(SourceError, match="no regular expressions: .*name the modules in full"):
        match_patterns("a.json", {pattern: 1}, ["a"])
