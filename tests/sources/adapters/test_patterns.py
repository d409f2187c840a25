"""PEFT's patterns, matched as `re` matches them and without its worst cases."""

from __future__ import annotations

import random
import re
import time

import pytest

from olivelike.errors import SourceError
from olivelike.sources.adapters.patterns import Patterns

PIECES = ("a", "b", "x", ".", "\\.", "*", "+", "?", "(", ")", "|", "[ab]", "[^.]", "\\d", "\\w+", ".*", "to_q", "{1,2}",
          "{2}", "^", "$", "(?:a|b)", "*?", "{,2}", "{0}", "down_blocks", "\\d+")  # fmt: skip
PATHS = ("down_blocks.0.attn1.to_q", "a.b.c", "to_q", "x", "aab.ab", "down_blocks.10.x.to_q", "a-b")


def test_any_pattern_matches_what_peft_matches():
    rng = random.Random(0)
    compared = 0
    while compared < 5000:
        pattern = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 7)))
        try:
            re.compile(pattern)
            expected = re.compile(rf"(.*\.)?({pattern})$")
            ours = Patterns("a.json", {f"(?:{pattern})": 1})
        except (re.error, SourceError):
            continue
        for path in PATHS:
            assert (ours.find(path) == 1) == (expected.match(path) is not None), (pattern, path)
            compared += 1


def test_the_first_pattern_counts_and_names_match_at_dots():
    found = Patterns("a.json", {"b.c": 1, ".*c": 2, "c": 3, "^d": 4, r"e\.f": 5})
    assert [found.find(path) for path in ("a.b.c", "xb.c", "c", "d", "a.d", "e.f")] == [1, 2, 2, 4, None, 5]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*x", "(a|a)" * 100 + "x", ".*" * 300 + "x"])
def test_patterns_that_keep_a_backtracking_matcher_busy_are_quick(pattern):
    start = time.process_time()
    assert Patterns("a.json", {pattern: 1}).find("a" * 200 + "!") is None
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "pattern",
    ["(?=x)", r"(a)\1", "(", "x{1,99999}", "((((x{99}){99}){99}){99})", "a++", "(" * 600 + ")" * 600],
)
def test_patterns_that_are_not_run_are_refused_by_name(pattern):
    with pytest.raises(SourceError, match="name the modules in full"):
        Patterns("a.json", {pattern: 1})


def test_patterns_that_take_too_much_work_together_are_refused():
    found = Patterns("a.json", {f"(.*a)*(.*b)*{number}x": 1 for number in range(100)})
    with pytest.raises(SourceError, match="too long to match"):
        for number in range(10_000):
            found.find(f"{'a.b.' * 50}{number}")
