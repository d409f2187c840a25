"""What code and which libraries each kind of node is keyed by; pinned, so that no import widens it unseen.

`python tests/engine/keys/test_makers.py` writes the list anew.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from olivelike._extras import load, offered
from olivelike.engine import keys as formulas
from olivelike.engine.kinds import KINDS as KIND, kind_of
from olivelike.engine.kinds.asset_nodes import AssetsTask, TokenizerTask
from olivelike.engine.kinds.calibrate import CalibrateTask
from olivelike.engine.kinds.kind import Task
from olivelike.engine.kinds.load import LoadTask
from olivelike.engine.kinds.materialize_node import MaterializeTask
from olivelike.engine.kinds.step import StepNode, StepTask
from olivelike.engine.plan.node import Node
from olivelike.workflow.code.imports import tool_versions
from olivelike.workflow.passes import Registry

GOLDEN = Path(__file__).with_name("makers.json")
ROOT = Path(__file__).parents[3]

OPTIONS = {"layout": [{"profile": "optimum"}], "float16": [{}, {"auto": True}], "int8": [{}, {"auto": True}]}
KINDS = {
    "load": (LoadTask, KIND["load"]),
    "assets": (AssetsTask, KIND["assets"]),
    "tokenizer": (TokenizerTask, KIND["tokenizer"]),
    "materialize": (MaterializeTask, KIND["materialize"]),
    "calibrate": (CalibrateTask, KIND["calibrate"]),
}
"""Tasks that are no pass, and the kind of node that they are for."""
OF_EXTRAS = {"AdoptTask": "load", "OneFileTask": "one_file"}
"""The same of extras, which may be missing."""
KINDS |= {name: (load("TASKS", name), kind_of(Node("one", "one", OF_EXTRAS[name], None))) for name in offered("TASKS")}


def codes():
    for name, (task, kind) in KINDS.items():
        code = formulas.code_behind(task.run)
        yield name, code, tool_versions(kind.libraries, code.tools)
    for entry in Registry.built_in().entries():
        for options in OPTIONS.get(entry.name, [{}]):
            instance = entry.cls(**options).chosen()
            code = formulas.pass_code(entry, instance)
            name = f"{entry.name}: auto" if options.get("auto") else entry.name
            yield name, code, tool_versions(instance.tools, code.tools)


def listed():
    return {
        name: {"libraries": sorted(versions), "modules": [module.removeprefix("olivelike.") for module in code.modules]}
        for name, code, versions in codes()
    }


def test_the_code_and_libraries_behind_each_kind_of_node_are_pinned():
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))
    missing = OF_EXTRAS.keys() - offered("TASKS")
    assert listed() == {name: code for name, code in expected.items() if name not in missing}, (
        "if the change is meant: python tests/engine/keys/test_makers.py"
    )


@pytest.mark.parametrize("name", KINDS)
def test_what_a_worker_runs_for_a_node_is_in_its_key(name):
    """What a task's method imports does the work; what its file imports is machinery, on which no result depends."""
    task, kind = KINDS[name]
    file = Path(sys.modules[task.__module__].__file__)
    classes = {node.name: node for node in ast.parse(file.read_text(encoding="utf-8")).body if hasattr(node, "name")}
    imported = {
        node.module for node in ast.walk(classes[task.__name__]) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert imported
    assert imported <= set(formulas.code_behind(task.run).modules)
    node = Node("unet", "unet", kind_name(kind), None)
    key = kind.key(node, {}, SimpleNamespace(source=a_source("model.onnx" if name == "AdoptTask" else None)))
    assert key.modules == dict(formulas.code_behind(task.run).modules)


def kind_name(kind):
    return next(name for name in {**KIND, **offered("KINDS")} if kind_of(Node("one", "one", name, None)) is kind)


def a_source(graph):
    return SimpleNamespace(checkpoint=lambda component: SimpleNamespace(graph=graph))


def test_every_kind_of_node_has_its_tasks_pinned():
    pinned = {task for task, _ in KINDS.values()} | {StepTask}
    known = {type(kind_of(Node("one", "one", name, None))) for name in {**KIND, **offered("KINDS")}}
    assert known == {type(kind) for _, kind in KINDS.values()} | {StepNode}
    assert set(concrete(Task)) == pinned


def concrete(root):
    """Return the classes below one that can be made."""
    below = [cls for child in root.__subclasses__() for cls in (child, *concrete(child))]
    return [cls for cls in below if not cls.__abstractmethods__]


def test_no_key_of_olivelikes_own_code_asks_the_environment_who_installed_what(monkeypatch):
    """That costs as much as all keys of a run with nothing to do."""

    def asked():
        raise AssertionError

    monkeypatch.setattr(sys.modules["olivelike.workflow.code.imports"], "_installed", asked)
    assert listed()


@pytest.mark.skipif("AdoptTask" not in OF_EXTRAS.keys() & offered("TASKS"), reason="the extra is not here")
def test_an_onnx_source_is_keyed_by_what_reads_onnx():
    node = Node("unet.load", "unet", "load", None)
    assert KIND["load"].work(node, a_source(None)) is LoadTask.run
    adopt = load("TASKS", "AdoptTask").run
    assert KIND["load"].work(node, a_source(Path("model.onnx"))) is adopt
    found = formulas.code_behind(adopt)
    assert {"olivelike.extras.adopt.onnx_graph", "olivelike.graphs.editing.editor"} <= set(found.modules)
    assert {"onnx", "onnx-ir", "onnxscript"} <= set(found.tools)


def test_no_result_is_keyed_by_what_fetches_or_reports():
    for name, code, versions in codes():
        modules = set(code.modules)
        assert not {module for module in modules if ".hub" in module or "single_file" in module}, name
        assert not {"huggingface_hub", "pydantic"} & set(versions), name
        assert "absent" not in code.modules.values(), name


def test_only_the_search_for_exceptions_brings_verification_into_float16():
    found = {name: entry["modules"] for name, entry in listed().items()}
    search = ("measure.verify", "graphs.functions", "graphs.export")
    assert not [module for module in found["float16"] if module.startswith(search)]
    assert "measure.verify.float_search" in found["float16: auto"]
    assert not [module for module in found["materialize"] if module.startswith("model.targets")]


def test_a_step_without_the_search_does_not_reach_what_it_says_it_does_not():
    code = (
        "import sys, onnx\n"
        "from olivelike.model import Graph, Model\n"
        "from olivelike.workflow.passes import Registry\n"
        "from olivelike.testing import run_pass\n"
        'graph = onnx.parser.parse_model(\'<ir_version: 10, opset_import: ["": 23]> '
        "g (float[N] x) => (float[N] y) { y = Relu(x) }')\n"
        "cls = Registry.built_in().get('float16').cls\n"
        "run_pass(cls(), Model('unet', graph=Graph(graph.SerializeToString())), target='cuda')\n"
        "print([name for name in sys.modules if name.startswith('olivelike.measure')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(listed(), indent=1) + "\n", encoding="utf-8")
