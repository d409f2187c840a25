"""Garbage of a shared store: by age, by size, never what a live run needs, whatever the clocks say."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from olivelike.extras.shared_store import leases
from olivelike.extras.shared_store.collection import collect, measure, verify
from olivelike.extras.shared_store.leases import HeldLease, read_leases
from tests.extras.shared_store.shared_results import made, shared_at

FIRST, SECOND, THIRD = (letter * 64 for letter in "abc")
SHARED = b"an object that two results need" * 10


HOUR = 3600.0


class Share:
    """The folder of a shared store, as a bucket for tests."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        found = (path for path in (self._root / folder).rglob("*") if path.is_file())
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def write(self, name: str, data: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def age(self, hours: float, *names: str) -> None:
        """Let files have been put so many hours ago; the other side's clock is that of its files."""
        moment = time.time() - hours * HOUR
        for name in names:
            os.utime(self._root / name, (moment, moment))

    def flip(self, name: str, at: int = 0) -> None:
        data = bytearray((self._root / name).read_bytes())
        data[at] ^= 1
        self.write(name, bytes(data))


@pytest.fixture
def bucket(tmp_path):
    return Share(tmp_path / "share")


@pytest.fixture
def filled(machine, bucket, tmp_path):
    """Three results in a file share, of three hours, two, and one ago; the first two share an object."""
    there = shared_at(f"file://{tmp_path}/share")
    there.check()
    ours = machine("ours")
    for hours, key, contents in (
        (3, FIRST, (SHARED, b"1" * 1000)), (2, SECOND, (SHARED, b"2" * 1000)), (1, THIRD, (b"3" * 1000,)),
    ):  # fmt: skip
        before = {*bucket.names("objects"), *bucket.names("actions")}
        there.give(made(ours, key, *contents), ours)
        bucket.age(hours, *({*bucket.names("objects"), *bucket.names("actions")} - before))
    return there


def test_size_counts_results_and_objects(filled):
    found = measure(filled)
    assert (found.results, found.objects) == (3, 4)
    assert found.bytes > 3 * 1000 + len(SHARED)


def test_nothing_goes_without_a_cap_or_an_age(filled):
    report = collect(filled, max_bytes=None, older_than=None)
    assert (report.results_removed, report.objects_removed, report.live_runs) == (0, 0, 0)
    assert report.bytes_before == report.bytes_after == measure(filled).bytes


def test_the_least_recently_used_go_first(bucket, filled):
    use = HeldLease(filled.folder, "run-1")
    use.use(FIRST)
    use.end()
    bucket.age(0.5, *bucket.names("leases"))
    report = collect(filled, max_bytes=measure(filled).bytes - 1, older_than=None)
    assert (report.results_removed, report.objects_removed) == (1, 1)
    assert filled.all_keys() == [FIRST, THIRD]  # Of the second one object stays, which the first needs.
    assert report.bytes_after == measure(filled).bytes
    report = collect(filled, max_bytes=0, older_than=None)
    assert (filled.all_keys(), report.bytes_after) == ([], 0)
    assert bucket.names("objects") == []


def test_what_was_not_used_for_long_goes(filled):
    collect(filled, max_bytes=None, older_than=2.5 * HOUR)
    assert filled.all_keys() == [SECOND, THIRD]


def test_what_a_live_run_uses_or_has_seen_stays(bucket, filled):
    live = HeldLease(filled.folder, "run-1")
    live.use(FIRST)
    live.hold()
    report = collect(filled, max_bytes=0, older_than=0)
    assert report.live_runs == 1
    assert filled.all_keys() == [FIRST]
    live.end()
    bucket.age(0.5, *bucket.names("leases"))
    collect(filled, max_bytes=0, older_than=None)
    assert filled.all_keys() == []


def test_a_run_that_died_holds_nothing_for_long(bucket, filled):
    lost = HeldLease(filled.folder, "run-1")
    lost.use(FIRST)
    lost.hold()
    # A file put now may be some milliseconds old: file systems tell time by the kernel's ticks.
    bucket.age((leases.LIVE_SECONDS + 1) / HOUR, *bucket.names("leases"))
    assert collect(filled, max_bytes=0, older_than=None).live_runs == 0
    assert filled.all_keys() == []


@pytest.mark.parametrize("hours", [-30, 30])
def test_clocks_of_machines_do_not_matter(filled, monkeypatch, hours):
    really = time.time
    monkeypatch.setattr(time, "time", lambda: really() + hours * 3600)
    live = HeldLease(filled.folder, "run-1")
    live.use(FIRST)
    live.hold()
    (_, lease), *_ = read_leases(filled.folder)
    assert abs(lease.began - lease.told) < HOUR
    report = collect(filled, max_bytes=None, older_than=4 * HOUR)
    assert (report.results_removed, report.live_runs) == (0, 1)
    live.end()


def test_objects_that_nobody_needs_go_after_a_while(bucket, filled):
    name = f"objects/ff/{'f' * 64}"
    bucket.write(name, b"left by a giver that was killed")
    bucket.age(2, name)
    assert collect(filled, max_bytes=None, older_than=None).objects_removed == 0
    assert collect(filled, max_bytes=None, older_than=None, grace_seconds=HOUR).objects_removed == 1
    assert len(filled.all_keys()) == 3


def test_what_is_damaged_is_found_and_removed(bucket, filled, machine):
    objects, records = bucket.names("objects"), bucket.names("actions")
    bucket.flip(objects[0])
    bucket.write("objects/zz/what", b"?")
    bucket.flip(records[-1], 200)
    report = verify(filled, repair=False)
    wrong = {objects[0], "objects/zz/what", records[-1]}
    assert wrong <= set(report.problems)
    assert all(reason.startswith("needs the object") for path, reason in report.problems.items() if path not in wrong)
    verify(filled, repair=True)
    assert verify(filled, repair=False).problems == {}
    theirs = machine("theirs")
    for key in filled.all_keys():
        assert filled.fetch(filled.find(key), theirs)


def test_damaged_leases_hold_nothing(bucket, filled):
    bucket.write("leases/x.json", b"{}")
    assert [lease for _, lease in read_leases(filled.folder)] == [None]
    collect(filled, max_bytes=None, older_than=None)
    assert bucket.names("leases") == []
