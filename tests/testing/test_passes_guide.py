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
from olivelike.pass_api import PARAMETER_KEY, Context, GraphEditor, Pass, weight_values
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


def test_the_pass_that_quantises_leaves_integers_behind_a_barrier():
    tensors = LocalTensors()
    weights = tensors.table({"w": np.array([[1, -8], [-2, 4]], np.float32)})
    graph = graph_of("g (float[N,2] x, float[2,2] w) => (float[N,2] y) { y = MatMul(x, w) }")
    model = LocalModel("unet", weights=weights, graph=graph, tensors=tensors)
    result = run_pass(example("class Int8Weights")["Int8Weights"](), model)
    assert result.facts == {"quantised": 1}
    onnx.checker.check_model(result.require("graph").data, full_check=True)
    left = result.require("graph").to_ir().graph
    (product,) = [node for node in left if node.op_type == "MatMul"]
    wide = product.inputs[1].producer()
    assert wide.op_type == "DequantizeLinear"
    assert product.inputs[1] not in weight_values(left)
    assert product.inputs[1] not in GraphEditor(result.require("graph").to_ir()).weights
    integers = tensors.evaluate(wide.inputs[0], weights)
    assert (integers.dtype, integers.tolist()) == (np.int8, [[64, -127], [-127, 64]])


def test_the_editor_takes_what_is_behind_a_barrier_for_no_weight():
    editor = GraphEditor(graph_of("g (int8[2] w, float[2] x) => (float[2] y) { y = Relu(x) }").to_ir())
    (relu,) = editor.nodes("Relu")
    weight = editor.graph.inputs[0]
    scale = editor.constant(0.5, np.float32)
    plain = editor.add("Neg", [weight], (2,), before=relu, name="plain")
    wide = editor.add("DequantizeLinear", [plain, scale], (2,), before=relu, name="wide")
    assert {weight, plain} <= editor.weights
    assert wide not in editor.weights


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


def test_a_constant_that_a_cleanup_removed_is_made_anew():
    """As where a rule asks for a shape again that no node had used."""
    editor = GraphEditor(graph_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").to_ir())
    first = editor.shape_constant(0, -1)
    assert editor.shape_constant(0, -1) is first
    del editor.graph.initializers[first.name]
    again = editor.shape_constant(0, -1)
    assert editor.graph.initializers[again.name] is again


@pytest.mark.parametrize("name", [name for name in vars(GraphEditor) if not name.startswith("_")])
def test_the_editor_is_described(name):
    assert f"`{name}" in GUIDE or name in {"add_outputs", "value", "import_contrib"}
