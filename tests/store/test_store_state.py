"""A machine of random steps drives the store against a dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from store_faults import UnsyncedFileSystem, make_action

from olivelike.digest import digest_bytes
from olivelike.store import Action, Store

contents = st.integers(0, 5).map(lambda number: b"content %d;" % number * 50)
names = st.sampled_from(["a", "b", "c", "d"])


class StoreAgainstDict(RuleBasedStateMachine):
    """What the store must give, what it may give, and what it must not."""

    actions = Bundle("actions")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.store = Store.open(self.root, filesystem=UnsyncedFileSystem())
        self.objects: dict[str, bytes] = {}
        self.recorded: dict[str, Action] = {}
        self.damaged: set[str] = set()
        self.pinned: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def put_object(self, data: bytes, how: str) -> None:
        if how == "bytes":
            digest = self.store.put_bytes(data)
        elif how == "stream":
            with self.store.writer() as writer:
                writer.write(data[:7])
                writer.write(data[7:])
                digest = writer.commit()
        else:
            with self.store.scratch() as folder:
                (folder / "file").write_bytes(data)
                digest = self.store.put_file(folder / "file")
        self.objects[digest] = data
        self.damaged.discard(digest)

    def forget_objects(self, keep: set[str]) -> None:
        self.objects = {digest: data for digest, data in self.objects.items() if digest in keep}

    def parts(self, keys: set[str]) -> set[str]:
        return {part for key in keys for part in self.recorded[key].parts}

    @rule(data=contents, how=st.sampled_from(["bytes", "stream", "file"]))
    def put(self, data: bytes, how: str) -> None:
        self.put_object(data, how)

    @rule(target=actions, name=names, data=st.lists(contents, min_size=1, max_size=3, unique=True))
    def record(self, name: str, data: list[bytes]) -> Action:
        for piece in data:
            self.put_object(piece, "bytes")
        action = make_action(name, *data)
        self.store.put_action(action)
        self.recorded[action.key] = action
        return action

    @rule(action=actions)
    def get(self, action: Action) -> None:
        found = self.store.get_action(action.key)
        expected = self.recorded.get(action.key)
        if expected is None or any(part not in self.objects for part in expected.parts):
            assert found is None
        elif self.damaged.isdisjoint(expected.parts):
            assert found == expected
        else:
            assert found in (None, expected)

    @rule(data=contents, how=st.sampled_from(["flip", "truncate", "delete"]))
    def damage_object(self, data: bytes, how: str) -> None:
        digest = digest_bytes(data)
        path = self.store.object_path(digest)
        if digest not in self.objects or not path.exists():
            return
        if how == "delete":
            path.unlink()
            del self.objects[digest]
            self.damaged.discard(digest)
        else:
            path.write_bytes(b"C" + data[1:] if how == "flip" else data[:-1])
            self.damaged.add(digest)

    @rule(data=contents)
    def read(self, data: bytes) -> None:
        digest = digest_bytes(data)
        expected = None if digest in self.damaged else self.objects.get(digest)
        assert self.store.read_bytes(digest) == expected
        if digest in self.damaged:
            self.damaged.discard(digest)
            del self.objects[digest]

    @rule(action=actions, how=st.sampled_from([b"", b"{}", b"\xff"]))
    def damage_record(self, action: Action, how: bytes) -> None:
        path = self.root / "actions" / action.key[:2] / f"{action.key}.json"
        if path.exists():
            path.write_bytes(how)
            del self.recorded[action.key]

    @rule(action=consumes(actions))
    def drop(self, action: Action) -> None:
        self.store.drop_action(action.key)
        dropped = self.recorded.pop(action.key, None)
        if dropped is not None:
            freed = set(dropped.parts) - self.parts(set(self.recorded))
            self.forget_objects(set(self.objects) - freed)
            self.damaged -= freed

    @rule(action=actions)
    def pin(self, action: Action) -> None:
        self.store.pin(f"pin/{action.inputs['pass']}", [action.key])
        self.pinned.add(action.key)

    @rule(action=actions)
    def unpin(self, action: Action) -> None:
        self.store.unpin(f"pin/{action.inputs['pass']}")
        self.pinned.discard(action.key)

    @rule(everything=st.booleans())
    def collect(self, everything: bool) -> None:
        self.store.gc(max_bytes=0 if everything else 1 << 30, grace_seconds=0)
        present = set(self.objects)
        self.recorded = {
            key: action
            for key, action in self.recorded.items()
            if present >= action.parts.keys() and (key in self.pinned or not everything)
        }
        self.forget_objects(self.parts(set(self.recorded)))
        self.damaged &= set(self.objects)

    @rule()
    def repair(self) -> None:
        self.store.verify(repair=True)
        assert self.store.verify().ok
        self.forget_objects(set(self.objects) - self.damaged)
        self.damaged.clear()
        present = set(self.objects)
        self.recorded = {key: action for key, action in self.recorded.items() if present >= action.parts.keys()}

    @rule()
    def reopen(self) -> None:
        self.store = Store.open(self.root, filesystem=UnsyncedFileSystem())

    @invariant()
    def what_is_listed_was_recorded(self) -> None:
        assert {action.key: action for action in self.store.actions()} == self.recorded

    @invariant()
    def nothing_temporary_is_left(self) -> None:
        assert list(self.root.joinpath("tmp").glob("*/*")) == []


TestStoreAgainstDict = StoreAgainstDict.TestCase
TestStoreAgainstDict.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
class TestStoreAgainstDictForLonger(StoreAgainstDict.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(TestStoreAgainstDict.settings, max_examples=200)
