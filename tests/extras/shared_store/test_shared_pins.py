"""Pins of a shared store keep results from its collection."""

from __future__ import annotations

import pytest

from olivelike.errors import StoreError
from olivelike.extras.shared_store.collection import collect
from olivelike.extras.shared_store.pins import put_pin, read_pins, remove_pin
from tests.extras.shared_store.shared_results import made, shared_at

FIRST, SECOND = (letter * 64 for letter in "ab")


@pytest.fixture
def filled(machine, tmp_path):
    there = shared_at(f"file://{tmp_path}/share")
    there.check()
    ours = machine("ours")
    for key in (FIRST, SECOND):
        there.give(made(ours, key, key.encode() * 10), ours)
    return there


def test_what_a_pin_names_stays_until_it_is_unpinned(filled):
    put_pin(filled.folder, "the best/one", [FIRST])
    assert read_pins(filled.folder) == {"the best/one": [FIRST]}
    collect(filled, max_bytes=0, older_than=0, grace_seconds=0)
    assert filled.all_keys() == [FIRST]
    remove_pin(filled.folder, "the best/one")
    remove_pin(filled.folder, "never pinned")
    collect(filled, max_bytes=0, older_than=0, grace_seconds=0)
    assert filled.all_keys() == []


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"name": 3}'])
def test_a_damaged_pin_stops_a_collection_before_it_removes_anything(filled, tmp_path, data):
    put_pin(filled.folder, "best", [FIRST])
    (tmp_path / "share" / "pins" / "best.json").write_bytes(data)
    with pytest.raises(StoreError, match=r"the pin pins/best.json there is damaged; pin its workflow again"):
        collect(filled, max_bytes=0, older_than=0, grace_seconds=0)
    assert filled.all_keys() == [FIRST, SECOND]
