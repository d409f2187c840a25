"""The search for the fewest members that a condition needs."""

from __future__ import annotations

import itertools
import math

import pytest

from olivelike.measure.verify.float_search import minimal_subset

LETTERS = tuple("abcdefghijklmnop")


class Condition:
    """Enough is what holds all of `needed`; counts how often it is asked about something new."""

    def __init__(self, needed: str) -> None:
        self.needed = set(needed)
        self.asked: set[frozenset[str]] = set()

    def __call__(self, members: tuple[str, ...]) -> bool:
        self.asked.add(frozenset(members))
        return self.needed <= set(members)


@pytest.mark.parametrize("needed", ["", "a", "p", "h", "ap", "gh", "bko", "abc", "nop", "".join(LETTERS)])
def test_exactly_what_is_needed_is_found(needed):
    condition = Condition(needed)
    assert set(minimal_subset(LETTERS, condition)) == set(needed)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_trials_find_few_members(count):
    for needed in itertools.combinations(LETTERS, count):
        condition = Condition("".join(needed))
        assert set(minimal_subset(LETTERS, condition)) == set(needed)
        assert len(condition.asked) <= 2 + count * (2 + 2 * math.log2(len(LETTERS)))


def test_likely_members_are_found_at_once():
    condition = Condition("ab")
    minimal_subset(LETTERS, condition)
    assert len(condition.asked) == 4


def test_what_no_set_satisfies_has_no_answer():
    assert minimal_subset(LETTERS, Condition("z")) is None
    assert minimal_subset((), Condition("z")) is None


def test_no_member_of_the_answer_can_be_left_out():
    def either(members):
        return {"a", "b"} <= set(members) or {"b", "c", "d"} <= set(members)

    found = minimal_subset(("d", "c", "b", "a"), either)
    assert either(found)
    assert not any(either(tuple(set(found) - {member})) for member in found)
