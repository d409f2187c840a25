from __future__ import annotations

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

LITTLE = "workflows/little.yaml"
OTHER_TEXT = ("--set", "components.text_encoder.1={label: {text: other}}")


def test_the_plan_of_a_warm_project_has_nothing_to_run(project, cli):
    result = cli("plan", LITTLE)
    assert result.status == 0
    header, *rows = result.out.splitlines()
    assert header.split() == ["node", "status", "time", "writes", "memory", "why"]
    assert re.search(r"^text_encoder\.label +hit +stored$", result.out, re.MULTILINE)
    assert re.fullmatch(r"little: nothing to run, all of \d+ nodes stored", rows[-1])


def test_a_changed_option_is_named_as_the_reason(project, cli):
    result = cli("plan", LITTLE, *OTHER_TEXT)
    assert re.search(
        r"^text_encoder\.label +miss +\S+ s +\S+ MB +\S+ GB +option text changed from labelled to other$",
        result.out,
        re.MULTILINE,
    )
    assert re.search(
        r"^text_encoder\.materialize +pending .+ decided when text_encoder\.label has run$", result.out, re.MULTILINE
    )
    assert re.search(r"hit, 1 miss, 1 pending; less than 10 s, about \S+ MB to write", result.out.splitlines()[-1])


def test_the_plan_says_how_long_nodes_took_before_and_where_nothing_tells(project, cli):
    nothing_stored = ("--json", "--cache-dir", "elsewhere")
    plan = json.loads(cli("plan", LITTLE, *nothing_stored).out)
    assert {node["expected_seconds"] for node in plan["nodes"]} == {None}
    assert (plan["totals"]["seconds_left"], plan["totals"]["unknown_nodes"]) == (None, 5)
    text = cli("plan", LITTLE, "--cache-dir", "elsewhere").out
    assert "time unknown: nothing like it has run here" in text
    assert re.search(r"^text_encoder\.load +miss +\? ", text, re.MULTILINE)
    shutil.rmtree("cache/actions")
    plan = json.loads(cli("plan", LITTLE, "--json").out)
    (load,) = (node for node in plan["nodes"] if node["id"] == "text_encoder.load")
    assert 0 <= load["expected_seconds"] <= plan["totals"]["seconds_left"]
    assert plan["totals"]["unknown_nodes"] == 1, "no run has made the graph, which was lent"


def test_the_plan_as_json_has_every_node_and_the_totals(project, cli):
    plan = json.loads(cli("plan", LITTLE, "--json", *OTHER_TEXT).out)
    assert plan["workflow"] == "little"
    assert plan["outputs"] == [str(project / "models" / "little")]
    assert plan["cache_dir"] == str(project / "cache")
    by_id = {node["id"]: node for node in plan["nodes"]}
    assert by_id["text_encoder.label"]["status"] == "miss"
    totals = plan["totals"]
    assert totals["nodes"] == len(plan["nodes"]) == totals["hit"] + 2
    to_run = [node for node in plan["nodes"] if node["status"] != "hit"]
    assert totals["write_bytes"] == sum(node["write_bytes"] for node in to_run)
    assert totals["largest_memory_bytes"] == max(node["memory_bytes"] for node in to_run)


def test_planning_writes_nothing(project, cli):
    shutil.rmtree("cache")
    before = sorted(project.rglob("*"))
    result = cli("plan", LITTLE)
    assert result.status == 0
    assert "never run here" in result.out
    assert sorted(project.rglob("*")) == before


def test_the_store_is_named_by_the_environment_too(project, cli, monkeypatch):
    Path("cache").rename("elsewhere")
    monkeypatch.setenv("OLIVELIKE_CACHE_DIR", str(project / "elsewhere"))
    assert "nothing to run" in cli("plan", LITTLE).out


def test_explain_says_since_when_results_are_stored(project, cli):
    result = cli("explain", LITTLE)
    assert result.status == 0
    assert re.search(
        r"^text_encoder\.convert: does not run, stored since 20\d\d-\d\d-\d\d \d\d:\d\d; it took ",
        result.out,
        re.MULTILINE,
    )


def test_explain_names_each_difference_from_the_nearest_earlier_run(project, cli):
    result = cli("explain", LITTLE, "text_encoder.label", *OTHER_TEXT)
    lines = result.out.splitlines()
    assert lines[:2] == ["text_encoder.label: runs", "  - option text changed from labelled to other"]
    assert any(line.startswith("  key      ") for line in lines)
    assert "  option   text = other" in lines


def test_explain_names_the_module_that_was_edited(project, cli):
    plugin = project / "plugins" / "passes_for_tests.py"
    plugin.write_text(plugin.read_text() + "\nEDITED = True\n")
    result = cli("explain", LITTLE, "text_encoder.label")
    assert re.search(r"^  - code changed: \S*passes_for_tests$", result.out, re.MULTILINE)


def test_explain_follows_a_pending_node_to_what_it_waits_for(project, cli):
    result = cli("explain", LITTLE, "text_encoder.materialize", *OTHER_TEXT)
    assert result.out.splitlines() == [
        "text_encoder.materialize: decided when text_encoder.label has run",
        "text_encoder.label: runs",
        "  - option text changed from labelled to other",
    ]


def test_explain_as_json_lists_the_changes(project, cli):
    (node,) = json.loads(cli("explain", LITTLE, "text_encoder.label", "--json", *OTHER_TEXT).out)
    assert node["status"] == "miss"
    assert node["changes"] == ["option text changed from labelled to other"]
    assert node["inputs"]["options"] == {"text": "other"}


def test_explain_of_an_unknown_node_names_the_nearest(project, cli):
    result = cli("explain", LITTLE, "text_encoder.lable")
    assert result.status == 2
    assert result.err == "error: the workflow has no node 'text_encoder.lable'; did you mean 'text_encoder.label'?\n"


def test_a_graph_is_drawn_in_each_format(project, cli):
    assert cli("graph", LITTLE).out.startswith("flowchart LR\n")
    assert cli("graph", LITTLE, "--format", "dot").out.startswith("digraph plan {")
    assert cli("graph", LITTLE, "--format", "svg", "--output", "plan.svg").out == ""
    assert ET.parse("plan.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_picture_that_can_not_be_written_is_an_error_with_status_2(project, cli):
    result = cli("graph", LITTLE, "--output", "no/such/folder.svg")
    assert result.status == 2
    assert result.err == "error: no/such/folder.svg can't be written: No such file or directory\n"


def test_explain_names_few_of_a_keys_modules_unless_asked_for_all(project, cli):
    arguments = ("explain", LITTLE, "text_encoder.convert")
    code = next(line for line in cli(*arguments).out.splitlines() if line.startswith("  code     "))
    assert re.fullmatch(r"  code     [0-9a-f]{12}, over \S+, \S+, \S+ and \d+ more \(--verbose\)", code)
    found = cli(*arguments, "--verbose").out
    count = int(re.search(r"over (\d+) modules", found)[1])
    assert len(re.findall(r"^ {11}\S+ [0-9a-f]{12}$", found, re.MULTILINE)) == count > 3


def test_explain_takes_the_selection_of_plan(project, cli):
    found = cli("explain", LITTLE, "--only", "text_encoder", "--until", "convert").out
    assert "text_encoder.convert: does not run" in found
    assert "text_encoder.label" not in found


def test_a_plan_fits_a_narrow_terminal(project, cli, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("plan", LITTLE, *OTHER_TEXT).out.splitlines()
    assert lines[0].split() == ["node", "status", "time", "why"]
    assert max(map(len, lines)) <= 80
    (row,) = (number for number, line in enumerate(lines) if line.startswith("text_encoder.materialize"))
    assert lines[row + 1].startswith("    ")
    monkeypatch.setenv("COLUMNS", "120")
    assert "writes" in cli("plan", LITTLE, *OTHER_TEXT).out.splitlines()[0]
