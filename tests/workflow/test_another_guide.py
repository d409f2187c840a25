"""A row of the table of guides is all that keys, sections, options, records and chains need to know a new kind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from olivelike.model.guides import GUIDES, guided_file

SCRIPT = r"""
import importlib.util, inspect, json, re, sys
from pathlib import Path

found = importlib.util.find_spec("olivelike.model.guides")
text = Path(found.origin).read_text(encoding="utf-8")
row = '''STUB = GuideKind(
    "stub", "Stub", "stubs", _several("stub"), ("diffusers", "StubModel"), step="controlnet_inputs",
    picture="stub_cond", enters="up", gives="stub_{}_residual",
)

'''
text = text.replace("GUIDES: Final[", row + "GUIDES: Final[", 1)
text, listed = re.subn(r"(for kind in \([A-Z_, 0-9]+)\)\}", r"\1, STUB)}", text, count=1)
assert listed, "the table lists its kinds in another way"
module = importlib.util.module_from_spec(found)
sys.modules[found.name] = module
exec(compile(text, found.origin, "exec"), module.__dict__)

import olivelike
from olivelike.cli.commands.convert import convert
from olivelike.cli.commands.verify import verify
from olivelike.engine.plan.adapters import Adapters
from olivelike.engine.plan.building import active_steps
from olivelike.model.components import DERIVED_FILES
from olivelike.model.records.origin import Origin
from olivelike.model.records.reading import from_json, to_json
from olivelike.workflow import json_schema, load_workflow
from olivelike.workflow.passes import Registry

Path("one.yaml").write_text(
    "source: ./a\ntarget: cpu\nstubs: [./b, c/d]\ncomponents: {unet: [convert, fuse]}\noutput: out\n"
)
loaded = load_workflow(Path("one.yaml"))
steps = active_steps(loaded, loaded.workflow.outputs, Adapters())[None]
origin = Origin("folder", "a", "/a", stubs={"stub": Origin("file", "b.bin", "/b.bin")}).published()
assert from_json(Origin, to_json(origin)) == origin
request = olivelike.ConvertRequest("a", "cpu", "out", guides={"stubs": ["b"]})
print(json.dumps({
    "schema": json_schema(Registry.built_in())["properties"]["stubs"]["description"],
    "specs": [str(one.spec().path or one.spec().hub) for one in loaded.workflow.guides["stubs"]],
    "steps": {name: [step.pass_name for step in chain] for name, chain in steps.items()},
    "names": origin.leading_names,
    "paths": [one.path for one in origin.guides.values()],
    "command": request.command(),
    "options": [name for one in (convert, verify) for name in inspect.signature(one).parameters if name == "stubs"],
    "files": sorted(name for name in DERIVED_FILES if "stub" in name),
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stub")
    ran = subprocess.run([sys.executable, "-c", SCRIPT], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder, json.loads(ran.stdout)


def test_a_new_kind_has_its_key_and_its_option(told):
    folder, found = told
    assert found["schema"].startswith("Stubs that become the components `stub`, `stub_2` and so on: hub ids")
    assert found["specs"] == [str(folder / "b"), "c/d"]
    assert found["options"] == ["stubs", "stubs"]
    assert found["command"] == "olivelike convert a --target cpu --output out --stub b"


def test_a_new_kind_has_chains_and_graphs(told):
    _, found = told
    own = ["convert", "fuse"]
    assert found["steps"] == {"unet": [*own, "controlnet_inputs"], "stub": own, "stub_2": own}
    assert {"stub.onnx", "controlnet_stub.onnx", guided_file(GUIDES).replace(".", "_stub.")} < set(found["files"])
    assert len(found["files"]) == 2 ** len(GUIDES)


def test_a_new_kind_is_recorded_without_its_path(told):
    _, found = told
    assert (found["names"], found["paths"]) == ({"stub": "b"}, [None])
