"""Shared stores whose records somebody has to have signed, and what one who can write there may try."""

from __future__ import annotations

import base64
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from olivelike.errors import OlivelikeError, UsageError
from olivelike.extras.shared_store.collection import collect, verify
from olivelike.extras.shared_store.exchange import exchange
from olivelike.extras.shared_store.run_sharing import Sharing
from olivelike.extras.shared_store.shared_store import SharedStore, open_shared_store
from olivelike.store import Store
from tests.extras.shared_store.shared_results import KEY, made
from tests.fixtures.certificates import write_key

pytest.importorskip("olivelike.extras.signing.signed_payloads", reason="the extra is gone", exc_type=ImportError)

OTHER = "c" * 64
GRAPH, TENSOR = b"graph" * 400, b"tensor" * 900
WRONG = b"a wrong graph"


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Returns what names the key that signs, and the file of keys that count, by names of keys."""
    for name in "ar":
        write_key(tmp_path, name)

    def use(key: str | None = None, counting: str | None = None) -> None:
        for variable, name in (
            ("OLIVELIKE_SHARED_KEY", key and f"{key}.key"),
            ("OLIVELIKE_SHARED_SIGNERS", counting and f"{counting}.pub"),
        ):
            if name is None:
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, str(tmp_path / name))

    return use


@pytest.fixture
def opened(tmp_path, keys):
    """Returns the store of a folder, as one with such keys sees it."""

    def open_it(key: str | None = None, counting: str | None = None, folder: str = "share") -> SharedStore:
        keys(key, counting)
        return open_shared_store((tmp_path / folder).as_uri(), "here")

    return open_it


def record(folder: Path, key: str = KEY) -> Path:
    return folder / "actions" / key[:2] / f"{key}.json"


def test_a_record_that_one_of_the_keys_signed_is_taken_and_others_are_not(opened, machine, tmp_path):
    ours = machine("ours")
    action = made(ours)
    assert opened("a").give(action, ours)
    assert opened().find(KEY) == opened("a").find(KEY) == opened(counting="a").find(KEY) == action
    other = opened(counting="r")
    assert other.find(KEY) is None
    assert other.not_taken(KEY) == "none of the keys has signed it"
    (tmp_path / "both.pub").write_bytes((tmp_path / "r.pub").read_bytes() + (tmp_path / "a.pub").read_bytes())
    assert opened(counting="both").find(KEY) == action
    plain = opened(folder="plain")
    plain.give(action, ours)
    asking = opened(counting="a", folder="plain")
    assert asking.find(KEY) is None
    assert asking.not_taken(KEY) == "nobody signed it"


def test_who_has_a_key_replaces_what_nobody_signed_and_who_has_none_leaves_it(opened, machine):
    ours, theirs = machine("ours"), machine("theirs")
    opened().give(made(ours, KEY, WRONG), ours)
    good = made(theirs, KEY, GRAPH)
    asking = opened(counting="a")
    assert not asking.may_give
    assert asking.find(KEY) is None
    assert not asking.give(good, theirs)
    signing = opened("a", "a")
    assert signing.find(KEY) is None
    assert signing.give(good, theirs)
    assert opened(counting="a").find(KEY) == good


def test_a_run_is_told_once_with_the_reason(opened, machine):
    ours = machine("ours")
    for key in (KEY, OTHER):
        opened("r").give(made(ours, key), ours)
    events = []
    sharing = Sharing(opened(counting="a"), machine("theirs"), events.append, "run")
    question = lambda key: SimpleNamespace(key=SimpleNamespace(digest=key), node=SimpleNamespace(id=f"node-{key[0]}"))
    for key in (KEY, OTHER):
        while (found := sharing.fetched(question(key), 1.0)) is None:
            pass
        assert found.action is None
        assert found.reason.endswith("is not taken ($OLIVELIKE_SHARED_SIGNERS): none of the keys has signed it")
    sharing.close()
    (warning,) = [event.data["message"] for event in events if event.name == "warning"]
    assert warning.startswith("node-a: what file://")
    assert warning.endswith("none of the keys has signed it; such results are made anew")


def test_pull_push_and_verify_ask_for_signatures(opened, machine):
    ours, theirs = machine("ours"), machine("theirs")
    made(ours)
    assert exchange(opened(), ours, gives=True, fetches=False).given.results == 1
    done = exchange(opened(counting="a"), theirs, gives=False, fetches=True)
    (problem,) = done.problems
    assert problem.startswith("1 result of file://")
    assert problem.endswith("are not taken ($OLIVELIKE_SHARED_SIGNERS): nobody signed it")
    assert theirs.get_action(KEY) is None
    assert list(verify(opened(counting="a"), repair=False).problems.values()) == [
        "is not taken ($OLIVELIKE_SHARED_SIGNERS): nobody signed it"
    ]
    assert exchange(opened("a"), ours, gives=True, fetches=False).given.results == 0
    assert exchange(opened("a", "a"), ours, gives=True, fetches=False).given.results == 1
    assert exchange(opened("a", "a"), ours, gives=True, fetches=False).given.there == 1
    assert exchange(opened(counting="a"), theirs, gives=False, fetches=True).fetched.results == 1
    assert verify(opened(counting="a"), repair=False).problems == {}
    collect(opened("a", "a"), max_bytes=0, older_than=None, grace_seconds=0.0)
    assert not list(opened().all_keys())


@pytest.mark.parametrize(
    ("key", "counting", "said"),
    [
        ("r", "a", "a.pub: lacks the public key of the private one that signs here"),
        ("gone", None, "gone.key: no such file"),
        (None, "gone", "gone.pub: no such file"),
        (None, "swapped", "swapped.pub: is a private key"),
        (None, "half", "half.pub: is no public key of the curve"),
        ("locked", None, "OLIVELIKE_KEY_PASSWORD"),
    ],
)
def test_keys_that_can_not_be_used_are_told_and_nothing_goes_on_without(opened, tmp_path, key, counting, said):
    shutil.copy(tmp_path / "a.key", tmp_path / "swapped.pub")
    (tmp_path / "half.pub").write_bytes((tmp_path / "a.pub").read_bytes() + b"-----BEGIN PUBLIC KEY-----\n")
    write_key(tmp_path, "locked", b"word")
    with pytest.raises(UsageError, match=said) as told:
        opened(key, counting)
    assert b"".join((tmp_path / "a.key").read_bytes().split(b"\n")[1:-2]).decode() not in str(told.value)


def test_a_variable_that_names_nothing_is_no_policy(monkeypatch, opened):
    monkeypatch.setenv("OLIVELIKE_SHARED_SIGNERS", " ")
    with pytest.raises(UsageError, match="is set and names no file; name one, or unset it"):
        open_shared_store("file:///nowhere/at/all", "here")


TAMPERINGS = 112
"""Fourteen kinds, each eight times with other places and results."""


@pytest.fixture
def share(opened, machine, tmp_path):
    """A store with two results that `a` signed, and one with the same keys whose records `r` signed."""
    for key, folder, contents in (("a", "share", (GRAPH, TENSOR)), ("r", "rogue", (WRONG, b"wrong"))):
        store = machine(f"machine-of-{key}")
        shared = opened(key, folder=folder)
        shared.check()
        shared.give(made(store, KEY, *contents), store)
        shared.give(made(store, OTHER, *(data[::-1] for data in contents)), store)
    return tmp_path / "share"


def test_nothing_that_was_tampered_with_is_used(share, opened, machine, tmp_path):
    honest = {key: opened(counting="a").find(key) for key in (KEY, OTHER)}
    wrong = []
    for number in range(TAMPERINGS):
        folder = tmp_path / f"tampered-{number}"
        shutil.copytree(share, folder)
        key = (KEY, OTHER)[number // 14 % 2]
        tamper(folder, tmp_path / "rogue", number, key, random.Random(number))
        store = Store.open(tmp_path / f"local-{number}")
        there = opened(counting="a", folder=folder.name)
        try:
            found = there.find(key)
            taken = found is not None and there.fetch(found, store)
        except OlivelikeError:
            taken = False
        if taken or store.get_action(key) is not None:
            wrong.append(number % 14)
        rest = next(one for one in honest if one != key)
        assert there.find(rest) in (None, honest[rest])
        for digest in (*honest[KEY].parts, *honest[OTHER].parts):
            assert store.object_size(digest) is None or store.check_object(digest)
        shutil.rmtree(folder)
    assert wrong == []


def tamper(folder, rogue, number, key, rng):
    """Change a store in one of fourteen ways, so that a result is not as it was signed."""
    path, other = record(folder, key), record(folder, OTHER if key == KEY else KEY)
    signed = json.loads(path.read_bytes())
    objects = sorted(path for path in (folder / "objects").rglob("*") if path.is_file())
    payload = json.loads(base64.b64decode(signed["payload"]))
    chosen = [one for one in objects if one.name in payload["parts"]]
    full = rng.choice(chosen)
    put = lambda **changes: path.write_text(json.dumps({**signed, **changes}))
    match number % 14:
        case 0:  # a bit of the record
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data) // 2)] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        case 1:
            path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size - 1)])
        case 2:  # without its signature
            path.write_bytes(base64.b64decode(signed["payload"]))
        case 3:
            put(signatures=rng.choice([[], None, 7, [7], [{}], {}, [[]], "x"]))
        case 4:  # of an unknown key, with its objects
            shutil.copytree(rogue, folder, dirs_exist_ok=True)
        case 5:  # an old one of another result
            shutil.copy(other, path)
        case 6:  # the signature of another record
            put(signatures=json.loads(other.read_bytes())["signatures"])
        case 7:  # other objects of the same signer, or other words, under the old signature
            change = rng.choice([{"outputs": {}}, {"facts": {"a": 1}}, {"seconds": 1e9}, {"parts": {}}])
            if rng.random() < 0.5:
                change = {"outputs": json.loads(base64.b64decode(json.loads(other.read_bytes())["payload"]))["outputs"]}
            put(payload=base64.b64encode(sealed({**payload, **change})).decode())
        case 8:  # a bit of an object
            data = bytearray(full.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            full.write_bytes(data)
        case 9:
            data = full.read_bytes()
            full.write_bytes(rng.choice([data[:-1], data + b"x", b"", data[: len(data) // 2]]))
        case 10:
            shutil.copy(rng.choice([one for one in objects if one != full]), full)
        case 11:  # links to what is of another result, or of no store
            target, source = rng.choice([(path, other), (full, other), (full, objects[0]), (full, Path("/dev/zero"))])
            if target == source:
                source = objects[1]
            target.unlink()
            target.symlink_to(source)
        case 12:  # another key's signature under a name that counts
            forged = json.loads(record(rogue, key).read_bytes())
            forged["signatures"][0]["keyid"] = signed["signatures"][0]["keyid"]
            put(**(forged if rng.random() < 0.5 else {"signatures": forged["signatures"]}))
            shutil.copytree(rogue / "objects", folder / "objects", dirs_exist_ok=True)
        case _:  # said to be something else
            put(payloadType=rng.choice(["application/vnd.in-toto+json", "", 7, None, "application/vnd.olivelike+json"]))


def sealed(content):
    from olivelike.store.actions import KIND
    from olivelike.store.folder import seal

    return seal(KIND, {name: value for name, value in content.items() if name not in ("kind", "seal")})


def test_what_the_key_signed_elsewhere_is_no_record(opened, machine, tmp_path):
    """The same key signs folders and other things: none of that counts as a record, whatever it says."""
    from olivelike.extras.signing.signed_payloads import PayloadSigner

    ours = machine("ours")
    action = made(ours)
    shared = opened("a")
    shared.give(action, ours)
    payload = base64.b64decode(json.loads(record(tmp_path / "share").read_bytes())["payload"])
    envelope = PayloadSigner(tmp_path / "a.key").signed(payload, "application/vnd.in-toto+json")
    record(tmp_path / "share").write_text(json.dumps(envelope))
    asking = opened(counting="a")
    assert asking.find(KEY) is None
    assert asking.not_taken(KEY) == "something else was signed"
    assert shared.give(replace(action, seconds=1.0), ours, anew=True)
    assert opened(counting="a").find(KEY).seconds == 1.0


def test_neither_private_keys_nor_paths_are_in_a_store(share, tmp_path):
    key = (tmp_path / "a.key").read_bytes()
    body = b"".join(key.split(b"\n")[1:-2])
    files = [path for path in share.rglob("*") if path.is_file()]
    assert len(files) == 7
    for path in files:
        data = path.read_bytes()
        if path.suffix == ".json" and b"payloadType" in data:
            data += base64.b64decode(json.loads(data)["payload"])
        for secret in (b"PRIVATE", body, base64.b64decode(body), str(tmp_path).encode(), b"a.key", b"a.pub"):
            assert secret not in data
