"""What a report begins with: sizes, errors, speed and nodes; and what changed since the run before."""

from __future__ import annotations

import copy

import pytest
from example_run import BENCH, PREVIOUS

OUTPUT = "/art/my project/models/demo"


def written(record, name, output, parent="unet.verify", number=""):
    """Return a node that writes an output."""
    return {
        **record["nodes"][0], "id": f"unet.{name}{number}", "name": name, "parent": parent, "output": output,
        "status": "executed",
    }  # fmt: skip


def test_a_report_leads_with_size_error_speed_and_nodes(record, report):
    record["nodes"].append(written(record, "materialize", OUTPUT))
    assert report(record, bench=BENCH).tiles() == {
        "Size": ("3.7 → 1.7 GB", "\N{MINUS SIGN}54 %, source to output"),
        "Worst error": ("1.5e-06", "in unet, limit 2e-02; relative to the original"),
        "Speed": ("2.30x torch", "0.5 s a picture, onnxruntime"),
        "Graph nodes": ("14 → 9", "\N{MINUS SIGN}36 % by fusion"),
    }


def test_what_grew_has_the_reason_beside_it(record, report):
    record["nodes"].append(written(record, "materialize", OUTPUT))
    source = sum(record["source_files"].values())
    record["elements"] = {"unet": source // 2}
    record["target"] |= {"name": "cpu", "precision": "fp32"}
    record["output_files"][OUTPUT] = {"unet/weights.pb": 2 * source + 100}
    for node in record["nodes"]:
        if "nodes_after" in node["facts"]:
            node["facts"] |= {"nodes_before": 14, "nodes_after": 24, "operators_before": {"Conv": 14}}
            node["facts"]["operators_after"] = {"Conv": 10, "Cast": 4, "Transpose": 10}
    tiles = report(record).tiles()
    half = "the source has its weights in half precision, cpu computes in float32"
    assert tiles["Size"][1] == f"+100 %, source to output: {half}"
    assert tiles["Graph nodes"] == ("14 → 24", "+71 % by fusion: Transpose +10, Cast +4")
    record["elements"] = {}
    assert report(record).tiles()["Size"][1] == "+100 %, source to output: graphs come to the weights"


def test_what_was_not_done_is_said_with_the_command_that_does_it(record, report):
    del record["nodes"][2]
    tiles = report(record).tiles()
    assert tiles["Worst error"] == ("not compared", "olivelike verify models/demo --report")
    assert tiles["Speed"] == ("not measured", "olivelike bench models/demo --report")


def test_an_error_that_is_too_large_or_not_finite_leads(record, report):
    figures = {"relative_error": None, "limit": 0.02, "passed": False}
    tiles = report(record, verification={"components": {"vae_decoder": figures}}).tiles()
    assert tiles["Worst error"] == ("not finite", "too far off, limit 2e-02; relative to the original")


def test_of_a_failed_run_no_command_needs_an_output_that_is_not_there(record, report):
    record |= {"status": "failed", "output_files": {}}
    del record["nodes"][2]
    tiles = report(record).tiles()
    assert tiles["Size"] == ("3.7 GB", "of the source; nothing was written")
    assert tiles["Speed"] == ("not measured", "there is no output")


def test_several_outputs_have_a_row_each_with_their_own_graphs(record, report):
    raw = "/art/my project/models/raw"
    record["output"] = [OUTPUT, raw]
    record["output_files"][raw] = {"unet/model.onnx": 3_700_000_000}
    record["nodes"] += [
        written(record, "materialize", OUTPUT, number=".1"),
        written(record, "materialize", raw, parent="unet.load", number=".2"),
    ]
    assert report(record).rows("2 outputs of a source of 3.7 GB") == [
        ["models/demo", "1.7 GB", "\N{MINUS SIGN}54 %", "14 → 9", "1.5e-06"],
        ["models/raw", "3.7 GB", "+0 %", "not fused", "not compared"],
    ]


def test_what_was_verified_later_counts_for_the_output_that_it_was(record, report):
    raw = "/art/my project/models/raw"
    record |= {"output": [OUTPUT, raw], "nodes": record["nodes"][:2]}
    found = {"folder": raw, "components": {"unet": {"relative_error": 3e-7}}}
    rows = report(record, verification=found).rows("2 outputs of a source of 3.7 GB")
    assert [row[-1] for row in rows] == ["not compared", "3.0e-07"]


def test_the_speed_of_engines_is_shown_with_what_speaks_against_it(record, report):
    made = report(record, bench=BENCH)
    rows = made.rows("A batch of pictures of 512x512, 20 steps; speed is against torch")
    assert rows[1] == ["torch", "default", "float32", "1", "1.15", "1.00x", "94%", "2.1 GB"]
    assert "torch, batch size 1: its runs took 0.5 to 1.6 s" in made.shown()


def test_a_run_is_compared_with_the_one_before(record, report):
    made = report({**record, "previous": PREVIOUS})
    assert made.rows("Compared with the run that ended on 31 December 2025, 09:05 UTC") == [
        ["Time", "2 min 00 s", "80.0 s"],
        ["Nodes that ran", "2", "2"],
        ["Size", "1.8 GB", "1.7 GB"],
        ["Target", "cpu", "cuda"],
        ["New nodes", "", "1 node: unet.verify"],
        ["Nodes that are gone", "1 node: unet.old", ""],
    ]
    times = {row[0]: row[4] for row in made.rows("When each step ran")}
    assert times == {"unet.fuse": "4.2 s", "unet.verify": ""}


@pytest.mark.parametrize("previous", [None, {}])
def test_without_a_run_before_nothing_breaks(record, report, previous):
    assert report({**record, "previous": previous}).headings()


def test_a_hub_source_and_a_hub_lora_are_named(record, report):
    hub = {"kind": "hub", "repository": "some/painter", "commit": "0123456789abcdef0123"}
    record["source"] = {**hub, "vae": {"kind": "folder", "path": "/art/my project/vae"}}
    record["loras"] = [{**hub, "file": "style.safetensors", "weight": 0.8, "weights": {}, "adapter": None}]
    made = report(record)
    assert "some/painter at 0123456789ab, VAE of vae" in made.shown()
    (row,) = made.rows("LoRAs that were merged")
    assert row[:2] == ["some/painter/style.safetensors at 0123456789ab", "0.8"]


def test_dates_are_those_of_people_and_have_a_zone(record, report):
    assert "1 January 2026, 00:01 UTC" in report(record).shown()
    assert "some day" in report({**record, "finished": "some day"}).shown()


def test_a_run_from_the_command_line_has_its_command_and_no_file(record, report):
    record = copy.deepcopy({**record, "file": None})
    record["command"] = "olivelike convert '/art/my project/painter.safetensors' --target cpu --output models/demo"
    told = report(record).shown()
    assert "from the command line: olivelike convert 'painter.safetensors' --target cpu" in told
