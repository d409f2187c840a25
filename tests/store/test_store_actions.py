"""Action records, and what each kind of damage to each kind of entry does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from store_faults import CHANGING, CountingFileSystem, make_action, put

from olivelike.errors import StoreError
from olivelike.store import Store, new_run_id
from olivelike.store.actions import KIND, decoded
from olivelike.store.folder import seal


def test_an_action_comes_back_as_it_was_put(store: Store) -> None:
    action = put(store, "convert", b"graph", b"tensor")
    assert store.get_action(action.key) == action
    assert list(store.actions()) == [action]
    later = dataclasses.replace(action, seconds=2.0)
    store.put_action(later)
    assert store.get_action(action.key) == later


def test_an_action_without_its_parts_is_not_recorded(store: Store) -> None:
    with pytest.raises(StoreError, match="missing"):
        store.put_action(make_action("convert", b"graph"))
    assert not store.root.joinpath("actions").exists()


def test_an_action_whose_output_is_no_part_is_refused(store: Store) -> None:
    action = dataclasses.replace(put(store, "convert", b"graph"), parts={})
    with pytest.raises(ValueError, match="don't fit together"):
        store.put_action(action)


def test_everything_is_on_the_disk_before_the_record_that_names_it(tmp_path: Path) -> None:
    done: list[str] = []
    filesystem = CountingFileSystem(lambda name, number, arguments: done.append(name))
    store = Store.open(tmp_path, filesystem=filesystem)
    put(store, "warm up", b"graph")
    done.clear()
    put(store, "convert", b"other graph")
    changes = [name for name in done if name in CHANGING and name != "make_folder"]
    entry = ["create", "write", "sync", "replace", "sync_folder", "remove"]
    assert changes == entry * 2
    assert done.index("replace") < done.index("stat"), "the record checks its parts, which are there"


def test_a_record_reads_as_json_with_the_parts_of_its_key(store: Store) -> None:
    action = put(store, "convert", b"graph")
    (path,) = store.root.joinpath("actions").glob("*/*.json")
    assert json.loads(path.read_text())["inputs"] == action.inputs


DIGEST = "0" * 64
DEEP = json.loads('{"a":' * 60 + "0" + "}" * 60)
NO_TABLES = (None, 1, "x", [], [1, 2], DEEP)
NO_COUNTS = (None, "x", [], {}, True, -1, 0.5, 1 << 63, 10**400)
LIES = {
    "key": (None, 1, [], "x", DIGEST),
    "inputs": NO_TABLES,
    "outputs": (*NO_TABLES, {"graph": None}, {"graph": "x"}, {"graph": [DIGEST]}, {"graph": DIGEST}),
    "parts": (*NO_TABLES, {}, {"x": 1}, {DIGEST: None}, {DIGEST: 1}, *({"PART": size} for size in NO_COUNTS)),
    "facts": NO_TABLES,
    "seconds": (None, "x", [], {}, True, -1.0, 1e308, 10**400),
    "peak_memory_bytes": NO_COUNTS,
    "created": (None, 1, [], "", "x", "2026-01-02", "2026-01-02T03:04:05", "9" * 5000),
}


@pytest.mark.parametrize("field", [*LIES, "a field more", "a field less"])
def test_a_record_that_lies_in_a_field_is_none(store: Store, field: str) -> None:
    action = put(store, "convert", b"graph")
    content = dataclasses.asdict(action)
    part = action.outputs["graph"]
    lying = [{**content, field: lie} for lie in LIES.get(field, ())]
    match field:
        case "parts":
            lying = [
                {**one, "parts": {part: one["parts"]["PART"]}}
                if isinstance(one["parts"], dict) and "PART" in one["parts"]
                else one
                for one in lying
            ]
        case "a field more":
            lying = [{**content, "evil": 1}]
        case "a field less":
            lying = [{name: value for name, value in content.items() if name != left} for left in content]
    assert lying
    assert decoded(seal(KIND, content), action.key) == action
    for one in lying:
        assert decoded(seal(KIND, one), action.key) is None, one
    for bad in (b"NaN", b"-Infinity", b"1e999", b'"\\ud800"'):
        assert decoded(seal(KIND, {**content, "seconds": 77}).replace(b"77", bad), action.key) is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    position = data.index(b"graph") if b"graph" in data else len(data) // 2
    data[position] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def nest_deeply(path: Path) -> None:
    path.write_text("[" * 100_000)


DAMAGES = [flip, truncate, empty, Path.unlink, replace_by_folder, nest_deeply]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("entry", ["record", "output", "tensor"])
def test_damage_to_a_result_is_a_miss_that_the_next_put_heals(store: Store, damage, entry: str) -> None:
    action = put(store, "convert", b"graph" * 10, b"tensor" * 10)
    tensor = next(part for part in action.parts if part not in action.outputs.values())
    paths = {
        "record": store.root / "actions" / action.key[:2] / f"{action.key}.json",
        "output": store.object_path(action.outputs["graph"]),
        "tensor": store.object_path(tensor),
    }
    damage(paths[entry])
    found = store.get_action(action.key)
    if found is not None:
        assert entry != "record", "a damaged record never counts"
        assert found == action
        assert any(store.read_bytes(part) is None for part in found.parts), "reading finds it"
        assert store.get_action(action.key) is None
    assert put(store, "convert", b"graph" * 10, b"tensor" * 10) == action
    assert store.get_action(action.key) == action
    assert store.verify().ok


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_record_or_pin_is_left_out(store: Store, damage) -> None:
    store.put_run({"run_id": "run-1", "note": "graph"})
    action = put(store, "convert", b"graph")
    store.pin("graph", [action.key])
    damage(store.root / "runs" / "run-1.json")
    damage(store.root / "roots" / "pins" / "graph.json")
    assert list(store.runs()) == []
    assert store.pins() == {}
    store.gc(max_bytes=0, grace_seconds=0)
    assert store.get_action(action.key) is None


def test_a_record_under_another_key_is_a_miss(store: Store) -> None:
    action, other = put(store, "one", b"graph"), make_action("two", b"graph")
    path = store.root / "actions" / action.key[:2] / f"{action.key}.json"
    target = store.root / "actions" / other.key[:2] / f"{other.key}.json"
    target.parent.mkdir(exist_ok=True)
    path.rename(target)
    assert store.get_action(other.key) is None


def test_dropping_an_action_frees_what_nothing_else_needs(store: Store) -> None:
    one = put(store, "one", b"graph one" * 99, b"shared" * 99)
    two = put(store, "two", b"graph two" * 99, b"shared" * 99)
    assert store.drop_action(one.key) > len(b"graph one" * 99)
    assert store.get_action(one.key) is None
    assert store.get_action(two.key) == two
    assert store.read_bytes(one.outputs["graph"]) is None
    assert store.read_bytes(two.outputs["graph"]) == b"graph two" * 99
    store.drop_action(one.key, two.key)
    assert store.size().files["objects"] == 0


def test_dropping_leaves_what_a_live_run_reads(store: Store) -> None:
    action = put(store, "one", b"graph")
    with store.live_run(new_run_id()) as root:
        root.add(keys=[action.key])
        store.drop_action(action.key)
        assert store.get_action(action.key) is None
        store.gc(max_bytes=0, grace_seconds=0)
        assert store.read_bytes(action.outputs["graph"]) == b"graph"
    store.gc(max_bytes=0, grace_seconds=0)
    assert store.read_bytes(action.outputs["graph"]) is None


def test_verify_finds_each_damage_and_repair_leaves_only_misses(store: Store) -> None:
    actions = [put(store, str(number), b"graph%d" % number) for number in range(4)]
    store.put_run({"run_id": "run-1"})
    flip(store.object_path(actions[0].outputs["graph"]))
    store.object_path(actions[1].outputs["graph"]).unlink()
    truncate(store.root / "actions" / actions[2].key[:2] / f"{actions[2].key}.json")
    truncate(store.root / "runs" / "run-1.json")
    store.root.joinpath("objects", "00").mkdir(exist_ok=True)
    store.root.joinpath("objects", "00", "stray").write_text("")
    seen: list[tuple[int, int]] = []

    report = store.verify(progress=lambda done, total: seen.append((done, total)))
    reasons = sorted(problem.reason.partition(" the object ")[0] for problem in report.problems)
    assert reasons == ["does not match its hash", "is damaged", "is damaged", "is no object", "needs", "needs"]
    assert not report.ok
    assert not report.repaired
    assert (report.actions, report.objects) == (4, 4)
    assert seen[-1] == (report.bytes, report.bytes)

    assert store.verify(repair=True).repaired
    assert store.verify().ok
    assert [action.key for action in store.actions()] == [actions[3].key]
