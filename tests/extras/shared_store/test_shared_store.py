"""Results given to a bucket and fetched from it: the right bytes, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from olivelike.errors import DamagedError, UnreachableError
from olivelike.extras.shared_store.shared_store import MARK
from tests.extras.shared_store.shared_results import KEY, made, shared, shared_at

OTHER = "c" * 64


def test_what_one_machine_gives_another_fetches(bucket, there, machine):
    ours, theirs = machine("ours"), machine("theirs")
    action = made(ours)
    assert there.give(action, ours)
    found = there.find(KEY)
    assert found == action
    assert there.missing_bytes(found, theirs) == sum(action.parts.values())
    assert there.fetch(found, theirs)
    assert theirs.get_action(KEY) == action
    assert theirs.verify().ok
    assert (there.fetched.results, there.fetched.bytes) == (1, sum(action.parts.values()))
    assert there.missing_bytes(found, theirs) == 0
    assert there.content(action.outputs["graph"]) == b"graph" * 400


def test_the_record_comes_last_and_the_first_of_two_stays(bucket, there, machine):
    ours, theirs = machine("ours"), machine("theirs")
    assert there.give(made(ours), ours)
    puts = [path for method, path in bucket.requests if method == "PUT"]
    assert "/actions/" in puts[-1]
    other = made(theirs, KEY, b"made by chance otherwise")
    assert not there.give(other, theirs)
    assert there.find(KEY).outputs != other.outputs
    assert there.give(other, theirs, anew=True)
    assert there.find(KEY).outputs == other.outputs


def test_of_many_that_give_at_once_one_is_first(bucket, there, machine):
    ours = machine("ours")
    actions = [made(ours, KEY, bytes([number])) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        first = list(threads.map(lambda action: there.give(action, ours), actions))
    assert first.count(True) == 1
    assert there.find(KEY).outputs == actions[first.index(True)].outputs


@pytest.mark.parametrize("at", [0, 900, -1])
def test_a_flipped_bit_is_a_miss_that_heals(bucket, there, machine, at):
    ours = machine("ours")
    action = made(ours)
    there.give(action, ours)
    for number, name in enumerate(bucket.names("team/objects")):
        bucket.flip(name, at)
        theirs = machine(f"theirs-{number}")
        assert not there.fetch(there.find(KEY), theirs)
        assert theirs.get_action(KEY) is None
        assert there.give(action, ours)  # Who makes it gives it anew.
        assert there.fetch(there.find(KEY), theirs)
        assert theirs.verify().ok


def test_a_damaged_record_is_a_miss_that_heals(bucket, there, machine):
    ours = machine("ours")
    action = made(ours)
    for damage in (lambda name: bucket.flip(name, 300), lambda name: bucket.write(name, b"")):
        assert there.give(action, ours)
        (name,) = bucket.names("team/actions")
        damage(name)
        assert there.find(KEY) is None
    assert there.give(action, ours)
    assert there.find(KEY) == action
    bucket.write(name.replace(f"aa/{KEY}", f"cc/{OTHER}"), bucket.read(name))  # That of another result.
    assert there.find(OTHER) is None


def test_an_object_that_is_gone_or_of_another_size_is_a_miss(bucket, there, machine):
    ours, theirs = machine("ours"), machine("others")
    action = made(ours)
    there.give(action, ours)
    first, second = bucket.names("team/objects")
    bucket.client.delete_object(Bucket=bucket.name, Key=first)
    assert not there.fetch(action, theirs)
    there.give(action, ours)
    assert theirs.get_action(KEY) is None
    theirs = machine("theirs")
    bucket.write(second, b"x" * 10_000_000)  # Ended as soon as it is more than it should be.
    with pytest.raises(UnreachableError, match=r"has more than the \d+ bytes that it should have"):
        there.fetch(action, theirs)
    assert theirs.get_action(KEY) is None
    bucket.write(second, b"x")
    assert not there.fetch(action, theirs)
    assert theirs.verify().ok


def test_what_the_local_store_lost_is_not_given(bucket, there, machine):
    ours = machine("ours")
    action = made(ours)
    path = ours.object_path(action.outputs["graph"])
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(DamagedError):
        there.give(action, ours)
    assert bucket.names("team/actions") == []


def test_who_may_only_read_changes_nothing(bucket, there, machine):
    ours, theirs = machine("ours"), machine("theirs")
    action = made(ours)
    there.give(action, ours)
    reader = shared(bucket, "?read-only")
    bucket.requests.clear()
    reader.check()
    bucket.flip(bucket.names("team/objects")[0])
    assert not reader.fetch(reader.find(KEY), theirs)
    assert {method for method, _ in bucket.requests} <= {"GET", "HEAD"}


def test_a_mark_of_another_version_and_no_mark_are_told(bucket):
    with pytest.raises(UnreachableError, match="holds no shared store"):
        shared(bucket, "?read-only").check()
    with pytest.raises(UnreachableError, match="holds no shared store"):
        shared(bucket).require()
    assert bucket.names() == []
    shared(bucket).check()
    assert bucket.names() == [f"team/{MARK}"]
    bucket.write(f"team/{MARK}", b"{}")
    with pytest.raises(UnreachableError, match="another version"):
        shared(bucket).check()


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("403", "refuses these credentials"),
        pytest.param("503", "SlowDown|no answer in time", marks=pytest.mark.slow),
        ("half", "payload|no answer in time"),
        ("silent", "no answer in time"),
    ],
)
def test_a_server_that_fails_is_told_and_nothing_is_lost(bucket, there, machine, mode, said, monkeypatch):
    monkeypatch.setattr("olivelike.extras.shared_store.requests._PAUSES", (0.01,))
    ours, theirs = machine("ours"), machine("theirs")
    action = made(ours)
    there.give(action, ours)
    quick = shared(bucket, "?timeout=60" if mode == "403" else "?timeout=0.5")  # Where it answers, it may be slow.
    bucket.mode, bucket.only = mode, "/objects/"
    with pytest.raises(UnreachableError, match=said) as failed:
        quick.fetch(quick.find(KEY), theirs)
    assert str(quick.address) in str(failed.value)
    assert theirs.get_action(KEY) is None
    if mode != "half":
        with pytest.raises(UnreachableError):
            quick.give(made(ours, OTHER, b"new"), ours)
    bucket.mode = "well"
    assert there.fetch(there.find(KEY), theirs)
    assert there.find(OTHER) is None


def test_a_large_object_goes_in_parts_and_comes_back(bucket, there, machine):
    ours, theirs = machine("ours"), machine("theirs")
    data = os.urandom(20_000_000)
    action = made(ours, KEY, data)
    there.give(action, ours)
    assert any("partNumber" in path for _, path in bucket.requests)
    assert there.fetch(there.find(KEY), theirs)
    assert theirs.read_bytes(action.outputs["graph"]) == data


def test_a_file_share_works_alike(machine, tmp_path):
    there = shared_at(f"file://{tmp_path}/share")
    there.check()
    ours, theirs = machine("ours"), machine("theirs")
    action = made(ours)
    assert there.give(action, ours)
    assert not there.give(action, ours)
    assert there.all_keys() == [KEY]
    assert there.fetch(there.find(KEY), theirs)
    assert there.fetched.bytes == sum(action.parts.values())
    assert theirs.verify().ok
    there.folder.remove([f"actions/aa/{KEY}.json", "actions/aa/none.json"])
    assert there.find(KEY) is None
    assert not any(tmp_path.glob("share/tmp/*"))


@pytest.mark.slow
def test_of_a_hundred_objects_with_a_flipped_bit_none_gets_in(bucket, there, machine):
    ours, theirs = machine("ours"), machine("theirs")
    for number in range(100):
        there.give(made(ours, f"{number:064x}", os.urandom(500 + number)), ours)
    for number, name in enumerate(bucket.names("team/objects")):
        bucket.flip(name, number * 7)
    for number in range(100):
        assert not there.fetch(there.find(f"{number:064x}"), theirs)
    assert list(theirs.actions()) == []
    assert theirs.verify().ok


GIVER = """
import sys
sys.path[:0] = [{root!r}]
from pathlib import Path
from olivelike.store import Store
from tests.extras.shared_store.shared_results import shared_at
there, ours = shared_at({url!r}), Store.open(Path({store!r}))
there.check()
print("ready", flush=True)
for action in list(ours.actions()):
    there.give(action, ours)
"""


@pytest.mark.slow
def test_a_giver_that_is_killed_leaves_whole_results_alone(bucket, there, machine, tmp_path):
    ours = machine("ours")
    for number in range(40):
        made(ours, f"{number:064x}", *(os.urandom(3000) for _ in range(3)))
    root = str(Path(__file__).parents[3])
    script = GIVER.format(root=root, url=f"s3://{bucket.name}/team", store=str(ours.root))
    for moment in range(50):
        giver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ)
        assert giver.stdout.readline() == b"ready\n"
        time.sleep(0.01 + moment * 0.03)
        giver.send_signal(signal.SIGKILL)
        giver.wait()
        giver.stdout.close()
        theirs = machine(f"theirs-{moment}")
        for key in there.all_keys():
            assert there.fetch(there.find(key), theirs)
        assert theirs.verify().ok
        for name in bucket.names("team/actions")[::2]:  # So that there is something to do.
            bucket.client.delete_object(Bucket=bucket.name, Key=name)
    assert ours.verify().ok
