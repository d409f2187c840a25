"""Records that are damaged, hostile, or of a later version: refused with the place and what to do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import TypeAdapter, ValidationError

from olivelike.errors import SourceError, StoreError
from olivelike.model.records.origin import Origin
from olivelike.model.records.output import OutputRecord
from olivelike.model.records.reading import RecordError, from_json, part_of_json, to_json
from olivelike.model.records.run_record import NodeRecord, RunRecord
from tests.fixtures.characters import CHARACTERS
from tests.fixtures.sample_records import output_record, run_record, write_output_record


def write(folder, **changes):
    content = json.loads(output_record().to_bytes())
    (folder / "olivelike.json").write_text(json.dumps(content | changes))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"workflow": 3}, "workflow: expected a text, found 3"),
        ({"source": {}}, "source.kind is missing"),
        ({"source": {"kind": "folder", "name": ""}}, "source: name is empty"),
        ({"source": {"kind": "cloud"}}, "source.kind: expected 'folder' or 'file' or 'hub', found 'cloud'"),
        ({"loras": {}}, "loras: expected a list, found an object"),
        ({"loras": [{"origin": {"kind": "hub"}, "weight": "\x1b"}]}, r"loras[0].weight: expected a number"),
        ({"components": {"unet": 3}}, "components.unet: expected an object, found 3"),
        ({"files": {"a": {"size": True, "sha256": ""}}}, "files.a.size: expected a whole number, found True"),
        ({"files": {"a": {"size": 10**30, "sha256": ""}}}, "files.a.size: expected a whole number, found 1000"),
        ({"files": {"../a": {"size": 1, "sha256": ""}}}, "'../a' is no path of a file in an output"),
        ({"\x1b": 1}, r"\x1b is no field that a record has"),
        ({"version": "2"}, "version: expected a number from 1, found '2'"),
        ({"kind": "journal/1"}, "it is no record of an output"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused_with_its_place(tmp_path, changes, place):
    write(tmp_path, **changes)
    with pytest.raises(SourceError) as caught:
        OutputRecord.require(tmp_path)
    assert f"olivelike.json: can't be read: {place}" in str(caught.value).replace("files: ", "")
    assert str(caught.value).endswith("; run the workflow that made it again")
    assert OutputRecord.read(tmp_path) is None


def test_a_record_of_a_later_version_is_refused_by_whoever_reads_it(tmp_path):
    write(tmp_path, version=3, surprise=1)
    for read in (OutputRecord.read, OutputRecord.require):
        with pytest.raises(SourceError, match=r"later olivelike wrote it \(version 3 .*up to 2"):
            read(tmp_path)


def test_a_run_of_a_later_version_is_named_where_runs_are_asked_for_and_else_left_out(tmp_path):
    from olivelike.engine.run_result import readable_runs, recorded_runs
    from olivelike.store import Store

    store = Store.open(tmp_path)
    store.put_run(run_record(run_id="1").to_json())
    store.put_run(run_record(run_id="2").to_json() | {"version": 9})
    assert [run.run_id for run in readable_runs(store)] == ["1"]
    with pytest.raises(StoreError, match="the record of run 2: a later olivelike wrote it .*; upgrade with"):
        list(recorded_runs(store))


@pytest.mark.parametrize("content", ["[" * 100_000, '{"kind": "output/1"}', "3", '{"kind": "output", "version": 0}'])
def test_what_is_no_record_at_all_is_none(tmp_path, content):
    (tmp_path / "olivelike.json").write_text(content)
    assert OutputRecord.read(tmp_path) is None


def test_a_path_that_is_no_utf_8_is_kept():
    record = run_record(outputs=("/models/\udcff",))
    assert RunRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_published_origin_has_no_path(tmp_path):
    origin = Origin.local("folder", tmp_path / "painter")
    both = Origin("folder", "a", "/x/a", vae=origin)
    assert (origin.name, origin.place) == ("painter", str(tmp_path / "painter"))
    assert str(tmp_path) not in json.dumps(to_json(both.published()))
    assert both.published() == Origin("folder", "a", vae=Origin("folder", "painter"))


def test_a_published_origin_has_a_path_inside_its_project_alone(tmp_path):
    inside, outside = (Origin.local("folder", tmp_path / name / "painter") for name in ("project/files", "private"))
    both = replace(outside, vae=inside).published(tmp_path / "project" / "models" / "new", tmp_path / "project")
    assert both == Origin("folder", "painter", vae=Origin("folder", "painter", near="../../files/painter"))
    for near in ("/etc/painter", "C:/painter", "C:painter", "//there/painter", "..\\painter", "a\0"):
        with pytest.raises(RecordError, match="near is no relative path"):
            Origin("folder", "painter", near=near)


def test_a_part_is_read_though_there_is_more():
    assert part_of_json(Origin, {"kind": "hub", "name": "a/b", "likes": 7}) == Origin("hub", "a/b")
    assert part_of_json(Origin, {"kind": "hub", "name": 7}) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(CHARACTERS, max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(CHARACTERS, max_size=3), inner, max_size=2),
    max_leaves=4,
)


NODE_BY_PYDANTIC = TypeAdapter(NodeRecord)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NodeRecord.__dataclass_fields__)), ANYTHING)
def test_what_pydantic_refuses_is_refused(name, value):
    content = {"id": "unet.load", "component": "unet", "name": "load", "status": "hit", name: value}
    try:
        wanted = NODE_BY_PYDANTIC.validate_json(json.dumps(content), strict=True)
    except ValidationError:
        wanted = None
    try:
        found = from_json(NodeRecord, content)
    except RecordError:
        found = None
    assert found == wanted or found is None


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(["workflow", "target", "source", "files", "loras", "layout"]), ANYTHING))
def test_no_content_of_a_record_is_a_bug(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("record")
    write_output_record(folder)
    write(folder, **changes)
    OutputRecord.read(folder)
    (folder / "olivelike.json").write_text(json.dumps({"kind": "output/1", **changes}))
    OutputRecord.read(folder)
