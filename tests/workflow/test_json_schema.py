"""The JSON schema accepts what the loader accepts and rejects what it rejects."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from olivelike.workflow import json_schema, load_workflow, shipped_names
from olivelike.workflow.passes import Registry

WORKFLOWS = Path(__file__).parents[2] / "workflows"

GOOD = {
    "source": "a/b",
    "target": "cpu",
    "components": {"unet": ["convert", {"float16": {"keep_io": True}}]},
    "output": "models/x",
}


@pytest.fixture(scope="module")
def validator():
    schema = json_schema(Registry.built_in())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_workflow_fits(validator, name):
    validator.validate(yaml.safe_load((WORKFLOWS / f"{name}.yaml").read_text()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("target", {"provider": "rocm", "device_id": 1, "precision": "fp16", "options": {"x": 1}}),
        ("target", {"provider": "cpu", "session_options": {"x": "1"}, "run_options": {"y": True}}),
        ("source", {"hub": "a/b", "revision": "main"}),
        ("components.unet", [{"float16": None}, {"convert": {}}]),
        ("plugins", ["x.py"]),
        ("loras", ["a.safetensors:0.5", {"file": "a/b", "weight": -1, "weights": {"unet": 0.5}}]),
        ("vae", {"hub": "a/b", "revision": "main"}),
        ("vae", "./better"),
        ("embeddings", ["a.pt", {"file": "b.pt", "token": "<b>"}]),
    ],
)
def test_long_forms_fit(validator, path, value):
    validator.validate(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("target", "cdua"),
        ("target", {"device_id": 1}),
        ("target", {"provider": "cpu", "device": 1}),
        ("source", 5),
        ("source", {"paht": "x"}),
        ("components", {}),
        ("components.unett", ["convert"]),
        ("components.unet", "convert"),
        ("components.unet", []),
        ("components.unet", None),
        ("components.unet", ["flaot16"]),
        ("components.unet", [{"convert": {}, "float16": {}}]),
        ("components.unet", [{"float16": {"keep": True}}]),
        ("components.unet", [{"float16": {"keep_io": "on"}}]),
        ("outputs", [{"path": "a"}]),
        ("output", None),
        ("loras", "a.safetensors"),
        ("loras", [{"weight": 1}]),
        ("loras", [{"file": "a", "weights": {"vae": 1}}]),
        ("vae", {"prediction": "epsilon"}),
        ("embeddings", [{"token": "a"}]),
        ("lora", []),
    ],
)
def test_mistakes_do_not_fit(validator, tmp_path, path, value):
    wrong = changed(path, value)
    assert not validator.is_valid(wrong)
    (tmp_path / "wrong.yaml").write_text(json.dumps(wrong))
    with pytest.raises(Exception, match=r"wrong\.yaml:"):
        load_workflow(str(tmp_path / "wrong.yaml"))


@pytest.mark.parametrize("key", ["source", "target", "components", "output"])
def test_keys_may_be_missing_only_in_a_file_that_extends_another(validator, key):
    partial = {name: value for name, value in GOOD.items() if name != key}
    assert not validator.is_valid(partial)
    assert validator.is_valid({**partial, "extends": "base.yaml"})


def test_a_file_that_extends_another_may_remove_a_component(validator):
    assert validator.is_valid({"extends": "sd15_cpu", "components": {"safety_checker": None}})


def test_passes_and_options_are_described_and_plugins_are_known(tmp_path):
    (tmp_path / "tune.py").write_text(
        "from pydantic import BaseModel\nfrom olivelike.pass_api import Pass\n\n\n"
        "class Inner(BaseModel):\n    x: int = 1\n\n\n"
        'class Tune(Pass):\n    """Tune it.\n\n    More."""\n\n'
        '    inner: Inner = Inner()\n    """What is inside."""\n'
        "    def run(self, model, context):\n        return model\n"
    )
    schema = json_schema(Registry.load([str(tmp_path / "tune.py")]))
    names = schema["$defs"]["Step"]["oneOf"][:-1]
    assert {"const": "tune", "description": "Tune it."} in names
    assert schema["$defs"]["pass.tune"]["properties"]["inner"]["description"] == "What is inside."
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(changed("components.unet", [{"tune": {"inner": {"x": 2}}}]))
    assert not validator.is_valid(changed("components.unet", [{"tune": {"inner": {"x": "a"}}}]))


def test_the_schema_beside_the_shipped_workflows_is_up_to_date():
    text = json.dumps(json_schema(Registry.built_in()), indent=2) + "\n"
    shipped = WORKFLOWS / "workflow.schema.json"
    assert shipped.read_text(encoding="utf-8") == text, "run `olivelike schema --output workflows/workflow.schema.json`"


def changed(path: str, value: object) -> dict:
    result = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    holder = result
    for key in parents:
        holder = holder[key]
    holder[last] = value
    return result
