"""The graph of a run, and its steps on one axis of time."""

from __future__ import annotations

import re

import pytest


def places(made):
    """Return where each bar is, in percent of the axis: its beginning and its width."""
    bars = [bar.get("style") for bar in made.elements("span") if (bar.get("class") or "").startswith("bar ")]
    return [tuple(float(number) for number in re.findall(r"[\d.]+", style)) for style in bars]


def test_the_graph_has_every_node_with_hits_and_misses_and_its_network_once(record, report):
    made = report(record)
    assert made.steps() == [("hit", "load stored"), ("executed", "fuse 3.5 s"), ("executed", "verify 7.0 s")]
    assert ["".join(heading.itertext()) for heading in made.elements("h3")].count("unet") == 1
    assert "1 was stored already" in made.shown()
    assert "2 of 3 nodes ran" in made.shown()


def test_steps_that_ran_stand_on_one_axis_in_the_order_of_their_starts(record, report):
    load, fuse, verify = record["nodes"]
    other = {**fuse, "id": "vae.fuse", "component": "vae", "start_seconds": 2.5, "seconds": 5.0}
    record["nodes"] = [load, verify, fuse, other]
    made = report(record)
    assert [row[0] for row in made.rows("When each step ran")] == ["unet.fuse", "vae.fuse", "unet.verify"]
    assert places(made) == [(16.0, 28.0), (20.0, 40.0), (44.0, 56.0)]
    marks = [mark.text for axis in made.elements("span") if axis.get("class") == "axis" for mark in axis]
    assert marks == ["0", "5 s", "10 s"]


def test_what_was_stored_is_said_once(record, report):
    made = report(record)
    assert made.rows("Taken from the store") == [["unet", "load"]]
    assert "unet.load" not in [row[0] for row in made.rows("When each step ran")]


def test_memory_is_what_a_step_added_to_its_worker(record, report):
    rows = report(record).rows("When each step ran, and the memory that its worker took for it")
    assert [row[3] for row in rows] == ["+120.0 MB", "+510.0 MB"]


def test_an_earlier_record_has_bars_from_zero_and_the_memory_of_workers(record, report):
    for node in record["nodes"]:
        node.pop("start_seconds", None)
        node.pop("memory_before_bytes", None)
    made = report(record)
    rows = made.rows("How long each step took, and the memory that its worker had, with what earlier steps left")
    assert [row[:4] for row in rows] == [
        ["unet.fuse", "", "3.5 s", "500.0 MB"],
        ["unet.verify", "", "7.0 s", "900.0 MB"],
    ]
    assert places(made) == [(0.0, 50.0), (0.0, 100.0)]


def test_one_reason_for_all_is_said_once(record, report):
    assert [row[-1] for row in report(record).rows("When each step ran")] == [
        "option attention changed",
        "never run here",
    ]
    for node in record["nodes"]:
        node["reason"] = "never run here"
    caption = report(record).table("When each step ran").findtext("caption")
    assert caption.endswith("All for the same reason: never run here.")


def test_branches_fork_and_are_called_by_the_output_that_they_lead_to(record, report):
    load, fuse, _ = record["nodes"]
    ends = [
        {**fuse, "id": f"unet.materialize.{number}", "name": "materialize", "parent": "unet.fuse", "output": folder}
        for number, folder in enumerate(("/models/a", "/models/b"), start=1)
    ]
    record |= {"nodes": [load, fuse, *ends], "output": ["/models/a", "/models/b"]}
    made = report(record)
    assert [text for _, text in made.steps()][2:] == ["materialize 3.5 s for a", "materialize 3.5 s for b"]
    names = [row[0] for row in made.rows("When each step ran")]
    assert names[1:] == ["unet.materialize.1 for a", "unet.materialize.2 for b"]
    (fork,) = (item for item in made.elements("li") if item.get("class") == "fork")
    assert len(fork) == 2


def test_a_failed_step_has_its_time_and_a_skipped_one_none(record, report):
    record["nodes"][1] |= {"status": "failed", "error": "broken"}
    record["nodes"][2] |= {"status": "skipped", "seconds": 0.0, "start_seconds": None, "peak_memory_bytes": 0}
    made = report(record)
    failed, skipped = made.rows("When each step ran")
    assert failed[:4] == ["unet.fuse", "", "3.5 s", "+120.0 MB"]
    assert skipped[:4] == ["unet.verify", "skipped", "", ""]
    assert [status for status, _ in made.steps()] == ["hit", "failed", "skipped"]


def test_parents_in_a_circle_end(record, report):
    record["nodes"][0]["parent"] = "unet.verify"
    assert len(report(record).steps()) == 3


@pytest.mark.parametrize(("start", "seconds"), [(1e308, 1e308), (0.0, 5e-324), (0.0, -5.0)])
def test_times_that_no_step_has_are_shown_on_an_axis_all_the_same(record, report, start, seconds):
    for node in record["nodes"]:
        node |= {
            "start_seconds": start,
            "seconds": seconds,
            "facts": {"verification": {"limit": 10**400}, "x": 10**400},
        }
    assert len(report(record).rows("When each step ran")) == 2
