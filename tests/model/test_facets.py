"""Facets: values with digests."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from olivelike.model import FACETS, Architecture, Graph, Model, Tensor, Weights
from olivelike.model.graph import PARAMETER_KEY, parameter_inputs, real_inputs, weight_values
from tests.fixtures.characters import CHARACTERS

ARCHITECTURE = Architecture("unet", "diffusers", "UNet2DConditionModel", {"in_channels": 4, "act_fn": "silu"})
WEIGHTS = Weights({
    "conv.weight": Tensor("F32", (2, 3), "ab" * 32, 64),
    "conv.bias": Tensor("BF16", (2,), "cd" * 32, 8),
})  # fmt: skip
TEXT = """
<ir_version: 10, opset_import: ["": 23]>
unet (float[N,2] x, float[2,2] weight, float[2] bias) => (float[N,2] y) <float two = {2.0}> {
    transposed = Transpose<perm = [1, 0]>(weight)
    scaled = Mul(transposed, two)
    product = MatMul(x, scaled)
    y = Add(product, bias)
}
"""


def graph() -> Graph:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    for value in model.graph.inputs:
        if value.name != "x":
            value.metadata_props[PARAMETER_KEY] = f"layer.{value.name}"
    return Graph.from_ir(model)


FACET_VALUES = {"architecture": ARCHITECTURE, "weights": WEIGHTS, "graph": Graph(b"an ONNX model")}

# Stored results are found by these: a change makes every store of every user start over.
GOLDEN = {
    "architecture": "c69c589b87d89c2a56f581f61a71c1546ea1ec02450b44a617b2dda48e58d52c",
    "weights": "1ba87b90a5cdf377614752a5a175092992f0df1389ffeb1ba2b08b38b09e2523",
    "graph": "a551d9c3a830bc03d191ee9363963b933bb66f6e76fd2b4b72efeb28385bbf3e",
}


@pytest.mark.parametrize("name", FACETS)
def test_a_facet_survives_its_serialisation(name):
    value = FACET_VALUES[name]
    again = FACETS[name].from_bytes(value.to_bytes())
    assert again.digest == value.digest
    assert again.to_bytes() == value.to_bytes()


@pytest.mark.parametrize("name", FACETS)
def test_digests_stay_what_they_were(name):
    assert FACET_VALUES[name].digest == GOLDEN[name]


def test_the_order_of_keys_and_tensors_does_not_matter():
    config = dict(reversed(ARCHITECTURE.config.items()))
    assert Architecture("unet", "diffusers", "UNet2DConditionModel", config).digest == ARCHITECTURE.digest
    assert Weights(dict(reversed(list(WEIGHTS.items())))).digest == WEIGHTS.digest


@pytest.mark.parametrize(
    "other",
    [
        Architecture("unet_2", "diffusers", "UNet2DConditionModel", ARCHITECTURE.config),
        Architecture("unet", "transformers", "UNet2DConditionModel", ARCHITECTURE.config),
        Architecture("unet", "diffusers", "UNet", ARCHITECTURE.config),
        Architecture("unet", "diffusers", "UNet2DConditionModel", {"in_channels": 4.5, "act_fn": "silu"}),
    ],
)
def test_every_part_of_an_architecture_counts(other):
    assert other.digest != ARCHITECTURE.digest


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("F16", (2, 3), "ab" * 32, 64),
        Tensor("F32", (3, 2), "ab" * 32, 64),
        Tensor("F32", (2, 3), "ac" * 32, 64),
        Tensor("F32", (2, 3), "ab" * 32, 65),
    ],
)
def test_every_part_of_a_tensor_counts(tensor):
    changed = WEIGHTS.replace({"conv.weight": tensor})
    assert changed.digest != WEIGHTS.digest
    assert WEIGHTS["conv.weight"] == Tensor("F32", (2, 3), "ab" * 32, 64)


TENSORS = st.builds(
    Tensor,
    st.sampled_from(["F32", "F16", "BF16", "I64"]),
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.integers(0, 2**40),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # A busy machine takes its time.
@given(st.dictionaries(st.text(CHARACTERS, min_size=1), TENSORS, max_size=5))
def test_any_weights_table_survives_its_serialisation(tensors):
    weights = Weights(tensors)
    assert dict(Weights.from_bytes(weights.to_bytes())) == tensors
    assert weights.files == {tensor.file for tensor in tensors.values()}


@pytest.mark.parametrize("cls", [Architecture, Weights])
def test_bytes_of_another_kind_are_refused(cls):
    with pytest.raises(ValueError, match="expected"):
        cls.from_bytes(b'["graph/1",1]' if cls is Weights else b'["graph/1",1,2,3,4]')


def test_a_tensor_knows_its_size_in_bytes():
    assert Tensor("BF16", (2, 3, 4), "", 0).nbytes == 48
    assert Tensor("F32", (), "", 0).nbytes == 4


def test_a_model_names_the_facets_that_it_has():
    model = Model("unet", architecture=ARCHITECTURE)
    assert model.digests() == {"architecture": ARCHITECTURE.digest}
    assert model.replace(weights=WEIGHTS).digests().keys() == {"architecture", "weights"}
    assert model.weights is None


def test_changes_to_the_mutable_form_do_not_reach_the_graph():
    value = graph()
    value.to_ir().graph.name = "changed"
    assert value.to_ir().graph.name == "unet"


def test_equal_graphs_have_equal_bytes_however_they_were_made():
    value = graph()
    assert Graph.from_ir(value.to_ir()) == value
    assert Graph.from_ir(Graph.from_ir(value.to_ir()).to_ir()).digest == value.digest


def test_parameters_are_the_marked_inputs_and_the_others_are_fed():
    inside = graph().to_ir().graph
    assert list(parameter_inputs(inside)) == ["layer.weight", "layer.bias"]
    assert [value.name for value in real_inputs(inside)] == ["x"]


def test_what_derives_from_parameters_and_constants_alone_is_a_weight():
    names = {value.name for value in weight_values(graph().to_ir().graph)}
    assert names == {"weight", "bias", "transposed", "scaled"}


def test_a_constant_is_no_weight():
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[2] x) => (float[2] y) <float[2] c = {1.0, 2.0}> { d = Neg(c) y = Add(x, d) }"""
    assert weight_values(ir.from_proto(onnx.parser.parse_model(text)).graph) == set()


def test_a_node_whose_subgraph_reads_an_input_is_no_weight():
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = a () => (float[2] p) { p = Neg(x) }, else_branch = b () => (float[2] q) { q = Abs(x) }>
    }"""
    inside = ir.from_proto(onnx.parser.parse_model(text)).graph
    inside.inputs[1].metadata_props[PARAMETER_KEY] = "c"
    assert weight_values(inside) == {inside.inputs[1]}
