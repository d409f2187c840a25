"""What a plugin's result depends on reruns it, in whatever way the plugin reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivelike.engine.execute.process_executor import ProcessExecutor
from olivelike.errors import PassError, PluginError

from .conftest import Project

PASS = """
{imports}
from olivelike.model import Graph
from olivelike.pass_api import Pass


class Note(Pass):
    "Write a text into the graph."
    reads = ("graph",)
    writes = ("graph",)
    {facts}

    def run(self, model, context):
        graph = model.graph.to_ir()
        graph.graph.doc_string = {value}
        return model.replace(graph=Graph.from_ir(graph))
"""
NODE = "text_encoder.note"


@pytest.fixture
def note(project: Project):
    """Put a pass into the chain that writes a text, and return where its files go."""

    def note(value: str, imports: str = "", facts: str = "") -> Path:
        folder = project.folder / "plugins"
        folder.mkdir(exist_ok=True)
        (folder / "note.py").write_text(PASS.format(value=value, imports=imports, facts=facts), encoding="utf-8")
        project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, note]")
        project.edit("name: small", "name: small\nplugins: [../plugins/note.py]")
        return folder

    return note


def text(project: Project) -> str:
    import onnx

    model = onnx.load(project.output / "text_encoder" / "model.onnx", load_external_data=False)
    return str(model.graph.doc_string)


def test_a_submodule_behind_a_star_import_reruns_the_pass(project: Project, note) -> None:
    folder = note("impl.text()", imports="from pkg import *")
    project.executor = ProcessExecutor  # A helper's code is what it was when a process first imported it.
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("__all__ = ['impl']\n", encoding="utf-8")
    (folder / "pkg" / "impl.py").write_text("def text():\n    return 'V1'\n", encoding="utf-8")
    project.run()
    assert text(project) == "V1"
    (folder / "pkg" / "impl.py").write_text("def text():\n    return 'V2'\n", encoding="utf-8")
    project.run()
    assert text(project) == "V2"
    assert project.reasons()[NODE] == "code changed: pkg.impl"


def test_named_files_and_variables_rerun_the_pass_and_are_named_without_their_values(
    project: Project, note, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTE_SECRET", "hidden-one")
    folder = note(
        "(Path(__file__).parent / 'table.txt').read_text() + os.environ['NOTE_SECRET'][-3:]",
        imports="import os\nfrom pathlib import Path",
        facts="files = ('table.txt',)\n    environment = ('NOTE_SECRET',)",
    )
    with pytest.raises(PluginError, match=r"names the data file 'table\.txt' .* no file .*table\.txt; put it there"):
        project.run()
    (folder / "table.txt").write_text("A", encoding="utf-8")
    project.run()
    assert text(project) == "Aone"
    assert project.run().executed == 0
    (folder / "table.txt").write_text("B", encoding="utf-8")
    project.run()
    assert project.reasons()[NODE] == "data file table.txt changed"
    monkeypatch.setenv("NOTE_SECRET", "hidden-two")
    project.run()
    assert project.reasons()[NODE] == "environment variable NOTE_SECRET changed"
    assert text(project) == "Btwo"
    records = (project.folder / "cache").rglob("*.json")
    assert not any("hidden-" in path.read_text(encoding="utf-8") for path in records)


def test_a_pass_whose_inputs_cannot_be_told_runs_every_time_and_the_reason_says_why(project: Project, note) -> None:
    folder = note("Path(__file__).read_text()[:3]", imports="from pathlib import Path")
    project.run()
    project.run()
    assert project.executed() == {NODE}
    assert f"{folder / 'note.py'}:15: __file__: it may read files" in project.reasons()[NODE]


def test_a_pass_that_changes_while_it_runs_is_not_kept_under_its_old_key(project: Project, note) -> None:
    note("(__import__('pathlib').Path(__file__).write_text('# changed'), 'x')[1]", facts="files = ()")
    with pytest.raises(PassError, match="pass note changed while it was waiting or running"):
        project.run()


RULE = """
from olivelike.pass_api import Rule


@Rule
def named(scope):
    "Any graph → one with a text."
    scope.editor.graph.doc_string = "V1"
    scope.fused["text"] += 1
"""


def test_a_rule_of_a_plugin_runs_in_fuse_and_reruns_it_when_it_changes(project: Project) -> None:
    file = project.folder / "workflows" / "named.py"
    file.write_text(RULE, encoding="utf-8")
    project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, fuse]")
    project.edit("name: small", "name: small\nplugins: [named.py]")
    project.run()
    assert text(project) == "V1"
    assert project.run().executed == 0
    file.write_text(RULE.replace("V1", "V2"), encoding="utf-8")
    project.run()
    assert text(project) == "V2"
    assert project.reasons()["text_encoder.fuse"] == "code changed: rule named: .named"
