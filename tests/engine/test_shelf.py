"""Runs of what a shelf knows: nothing is traced, no library is imported, and the result is the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from olivelike.digest import digest_bytes
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.engine.run import run as run_workflow
from olivelike.engine.run_result import RunResult, readable_runs
from olivelike.graphs.shelf import BUILT_IN, Shelf, ShelfFolder
from olivelike.model import Architecture, Graph
from olivelike.store import Store
from tests.fixtures.chat_tokenizer import write_chat_tokenizer
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.no_torch import HEAVY, forbid_torch
from tools.make_shelf import TRANSFORMERS, hollow_folder

SHIPPED = Shelf([BUILT_IN])
WORKFLOW = """
source: demo
target: cpu
components:
  text_encoder: [convert{text}]
  vae_decoder: [convert]
output: models/out
"""


@pytest.fixture
def workflow(tmp_path) -> Path:
    path = tmp_path / "workflows" / "shelf.yaml"
    path.parent.mkdir()
    path.write_text(WORKFLOW.format(text=""))
    return path


def run(workflow: Path, events: list | None = None, **options) -> RunResult:
    heard = (events.append) if events is not None else (lambda _: None)
    return run_workflow(str(workflow), Options(**options), heard, executor=InlineExecutor)


def statuses(workflow: Path) -> dict[str, str]:
    _, found = plan(str(workflow))
    return {planned.node.id: planned.status for planned in found.nodes}


def output(workflow: Path) -> dict[str, bytes]:
    folder = workflow.parents[1] / "models" / "out"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "olivelike.json"
    }


def text_encoder_graph(workflow: Path) -> str:
    """Return the digest of the graph that the output's record names."""
    record = json.loads((workflow.parents[1] / "models" / "out" / "olivelike.json").read_bytes())
    return record["components"]["text_encoder"]["facets"]["graph"]


def test_plan_run_and_record_say_shelf_and_the_second_run_finds_all_stored(workflow):
    assert statuses(workflow) == {
        "text_encoder.load": "shelf",
        "text_encoder.convert": "shelf",
        "text_encoder.materialize": "miss",
        "vae_decoder.load": "shelf",
        "vae_decoder.convert": "shelf",
        "vae_decoder.materialize": "miss",
        "pipeline.assets": "miss",
    }
    events = []
    result = run(workflow, events)
    assert (result.shelved, result.executed, result.hits) == (4, 3, 0)
    assert [event.data["node"] for event in events if event.name == "node_shelved"] == [
        "text_encoder.load", "text_encoder.convert", "vae_decoder.load", "vae_decoder.convert",
    ] or sum(event.name == "node_shelved" for event in events) == 4  # fmt: skip
    (record,) = readable_runs(Store.open(workflow.parents[1] / "cache"))
    assert record.count("shelf") == 4
    again = run(workflow)
    assert (again.shelved, again.executed, again.hits) == (0, 0, 7)


def test_a_fresh_trace_gives_the_same_bytes_in_another_node(workflow):
    run(workflow)
    before, graph = output(workflow), text_encoder_graph(workflow)
    workflow.write_text(WORKFLOW.format(text=": {fresh: true}"))
    assert statuses(workflow)["text_encoder.convert"] == "miss"
    result = run(workflow)
    assert result.executed >= 1
    assert output(workflow) == before
    assert text_encoder_graph(workflow) == graph


def test_no_process_of_a_run_imports_the_exporter_or_its_libraries(workflow, tmp_path):
    """Each process of a real run tells that it began, and every module that it imports."""
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"told = open(os.path.join({str(spy)!r}, f'{{os.getpid()}}.modules'), 'a', buffering=1)\n"
        "sys.addaudithook(lambda event, values: event == 'import' and told.write(f'{values[0]}\\n'))\n"
    )
    workflow.write_text(
        WORKFLOW.format(text="").replace("vae_decoder: [convert]", "vae_decoder: [convert, fuse, float16]")
    )
    command = [sys.executable, "-m", "olivelike", "run", str(workflow), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(spy)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    finished = json.loads(done.stdout.splitlines()[-1])
    assert (finished["shelved"], finished["executed"]) == (4, 5)
    told = [path.read_text().split("\n") for path in spy.glob("*.modules")]
    assert sum("olivelike.engine.execute.worker" in modules or "onnx_ir" in modules for modules in told) >= 1
    assert [name for modules in told for name in HEAVY if name in modules] == []


KLEIN = """
source: klein
target: cpu
components:
  text_encoder: [convert, weights8]
  transformer: [convert, fuse, weights8]
  vae_encoder: [convert]
  vae_decoder: [convert]
output: models/out
"""


def test_klein_at_its_real_size_needs_no_torch_up_to_its_graphs(workflow, monkeypatch):
    folder = hollow_folder(TRANSFORMERS["flux2"], workflow.parents[1] / "klein")
    write_chat_tokenizer(folder / "tokenizer")
    workflow.write_text(KLEIN)
    forbid_torch(monkeypatch)
    made = {name: status for name, status in statuses(workflow).items() if name.endswith((".load", ".convert"))}
    assert len(made) == 8
    assert set(made.values()) == {"shelf"}


def test_a_damaged_entry_is_told_and_traced_instead(workflow, tmp_path, monkeypatch):
    run(workflow)
    before = output(workflow)
    shutil.rmtree(workflow.parents[1] / "cache")
    shutil.rmtree(workflow.parents[1] / "models")
    shelf = tmp_path / "shelf"
    shutil.copytree(BUILT_IN, shelf)
    for path, entry in ShelfFolder(shelf).entries():
        if entry.kind == "graph" and entry.component == "text_encoder":
            path.write_bytes(path.read_bytes()[:-9] + bytes(9))
    monkeypatch.setattr("olivelike.graphs.shelf.shelves.BUILT_IN", shelf)
    traced = []  # What a trace gives is the matter of the test of a fresh one.
    monkeypatch.setattr(
        "olivelike.graphs.export.export_component",
        lambda architecture, _, any_size: (
            any_size or traced.append(architecture.component) or Graph(SHIPPED.graph(architecture))
        ),
    )
    events = []
    result = run(workflow, events)
    assert traced == ["text_encoder"]
    assert (result.shelved, result.executed) == (3, 4)
    (told,) = [event.data["message"] for event in events if event.name == "warning"]
    assert "is damaged" in told
    assert str(shelf) in told
    assert output(workflow) == before


def test_an_invalid_graph_on_a_shelf_of_ones_own_is_no_answer(tmp_path):
    entries = [entry for _, entry in ShelfFolder(BUILT_IN).entries() if entry.component == "vae_decoder"]
    bad = b"\x08\x0b no graph"
    folder = ShelfFolder(tmp_path)
    folder.write(replace(entries[0], digest=digest_bytes(bad), size=len(bad)), bad)
    shelf = Shelf([tmp_path])
    assert shelf.graph(Architecture.from_bytes(entries[0].architecture.encode())) is None
    assert "holds no valid graph" in shelf.damages[0]
    assert str(tmp_path) in shelf.damages[0]


def test_explain_says_that_a_shelved_node_does_not_run(workflow, capsys):
    from olivelike.cli.app import run_command_line

    assert run_command_line(["explain", str(workflow), "text_encoder.convert"]) == 0
    assert capsys.readouterr().out.startswith("text_encoder.convert: does not run, the shelf has it")
