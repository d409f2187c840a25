"""The examples of `docs/passes.md` do what they say, and its tables are complete."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import onnx
import pytest

from olivelike.model import Graph, Model
from olivelike.pass_api import PARAMETER_KEY, Context, GraphEditor, Pass
from olivelike.testing import LocalModel, LocalTensors, run_pass

GUIDE = (Path(__file__).parents[2] / "docs" / "passes.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def example(word: str) -> dict:
    """Run the example that has a word in it, and return what it defines."""
    (text,) = (text for text in EXAMPLES if word in text)
    names: dict = {"MyPass": SeesLoras, "__name__": "example"}
    exec(compile(text, "example", "exec", dont_inherit=True), names)
    return names


class SeesLoras(Pass):
    reads: ClassVar = ("weights", "loras")

    def run(self, model, context):
        context.report(loras=len(context.loras))
        return model


def graph_of(text: str) -> Graph:
    proto = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": 23]> {text}')
    model = Graph(onnx.shape_inference.infer_shapes(proto).SerializeToString()).to_ir()
    for value in model.graph.inputs:
        if value.name.startswith("w"):
            value.metadata_props[PARAMETER_KEY] = value.name
    return Graph.from_ir(model)


def test_the_pass_over_weights_and_its_test_work(monkeypatch):
    module = ModuleType("halve_biases")
    vars(module).update(example("class HalveBiases"))
    monkeypatch.setitem(sys.modules, "halve_biases", module)
    example("test_biases_are_halved")["test_biases_are_halved_and_the_rest_stays"]()


def test_a_derived_weight_is_evaluated():
    tensors = LocalTensors()
    weights = tensors.table({"w": np.array([[1, -7]], np.float32)})
    graph = graph_of("g (float[N,2] x, float[1,2] w) => (float[N,1] y) { t = Transpose(w) y = MatMul(x, t) }")
    model = LocalModel("unet", weights=weights, graph=graph, tensors=tensors)
    assert run_pass(example("class LargestWeight")["LargestWeight"](), model).facts == {"largest_weight": 7.0}


def test_the_pass_over_a_graph_uses_the_editor():
    graph = graph_of("g (float[N,2] x) => (float[N,2] y) { y = Sigmoid(x) }")
    result = run_pass(example("class HardSigmoid")["HardSigmoid"](), Model("unet", graph=graph))
    (node,) = result.require("graph").to_ir().graph
    assert (node.op_type, node.outputs[0].name) == ("HardSigmoid", "y")
    onnx.checker.check_model(result.require("graph").data, full_check=True)


def test_the_test_with_a_lora_runs(tmp_path):
    names = example("make_lora")
    names["test_my_pass_sees_every_lora"](tmp_path)


def test_every_class_attribute_and_everything_lent_is_described():
    declared = {name for name in Pass.__annotations__ if name != "model_config"}
    lent = {field.name for field in dataclasses.fields(Context)}
    methods = {name for name, value in vars(Context).items() if inspect.isfunction(value)} - {"_required"}
    found = {name for name in declared | lent | methods if not name.startswith("_")}
    assert {name for name in found if f"`{name}" not in GUIDE} == set()


@pytest.mark.parametrize("name", [name for name in vars(GraphEditor) if not name.startswith("_")])
def test_the_editor_is_described(name):
    assert f"`{name}" in GUIDE or name in {"add_outputs", "value", "import_contrib"}
