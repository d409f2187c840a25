"""Half precision on small graphs: which node runs in what, and which values float16 can't hold."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from olivelike.errors import PassError
from olivelike.graphs.precision import HalfPrecision
from olivelike.measure.verify.evaluation import Evaluation
from olivelike.model import Graph
from olivelike.model.finite_values import count_not_finite
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY
from olivelike.model.half_values import to_half

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16

NETWORK = """
<ir_version: 10, opset_import: ["": 23]>
unet (float[N,2] sample, float[1] timestep, float[2,2] weight) => (float[N,2] out)
<float[2] frequencies = {1.0, 0.5}, float[2] large = {100000.0, 1e-9}>
{
    product = MatMul(sample, weight)
    angle = Mul(timestep, frequencies)
    sine = Sin(angle)
    embedded = MatMul(sine, weight)
    sum = Add(product, embedded)
    weighted = Softmax(sum)
    out = Add(weighted, large)
}
"""


def network(text=NETWORK, parameters=("weight",), blocks=None):
    model = ir.from_proto(onnx.parser.parse_model(text))
    for value in model.graph.inputs:
        if value.name in parameters:
            value.metadata_props[PARAMETER_KEY] = value.name
    for node in model.graph:
        block = (blocks or {}).get(node.outputs[0].name)
        if block:
            node.metadata_props[BLOCK_KEY] = block
    return model


def convert(model, keep_io=False, operators=(), blocks=()):
    half = HalfPrecision(model, keep_io=keep_io, forced_operators=operators, forced_blocks=blocks)
    counts = half.convert()
    onnx.checker.check_model(Graph.from_ir(model).data, full_check=True)
    return counts


def dtypes(model):
    return {value.name: value.dtype for node in model.graph for value in node.outputs} | {
        value.name: value.dtype for value in model.graph.inputs
    }


def test_nodes_run_in_float16_and_parameters_become_casts():
    model = network()
    convert(model)
    found = dtypes(model)
    assert {found[name] for name in ("product", "embedded", "sum", "weighted", "out")} == {HALF}
    (cast,) = (node for node in model.graph if node.inputs[0].name == "weight")
    assert (cast.op_type, cast.attributes["to"].as_int(), found["weight"]) == ("Cast", HALF, FLOAT)


def test_inputs_and_outputs_are_float16_except_the_timestep():
    model = network()
    convert(model)
    assert [value.dtype for value in model.graph.inputs] == [HALF, FLOAT, FLOAT]
    assert [value.dtype for value in model.graph.outputs] == [HALF]


def test_the_sines_of_the_timestep_are_computed_in_float32():
    model = network()
    convert(model)
    found = dtypes(model)
    assert (found["angle"], found["sine"], found["sine.float16"]) == (FLOAT, FLOAT, HALF)


def test_keep_io_leaves_inputs_and_outputs_in_float32_under_their_names():
    model = network()
    convert(model, keep_io=True)
    assert [value.dtype for value in model.graph.inputs] == [FLOAT] * 3
    assert [(value.name, value.dtype) for value in model.graph.outputs] == [("out", FLOAT)]
    assert dtypes(model)["product"] == HALF


def test_a_second_conversion_changes_nothing():
    model = network()
    convert(model)
    first = Graph.from_ir(model)
    convert(model)
    assert Graph.from_ir(model) == first


def test_a_forced_operator_stays_in_float32_until_a_parameter_or_a_half_value_comes_in():
    model = network()
    convert(model, operators=["Softmax"])
    (softmax,) = (node for node in model.graph if node.op_type == "Softmax")
    assert (softmax.inputs[0].dtype, softmax.outputs[0].dtype) == (FLOAT, FLOAT)
    assert [dtypes(model)[name] for name in ("sum", "out.float", "out")] == [HALF, FLOAT, HALF]


@pytest.mark.parametrize("pattern", ["up.0", "up.0.norm", "up.*", "*.norm", "up.0.n*"])
def test_a_forced_block_stays_in_float32_with_what_lies_inside(pattern):
    model = network(blocks={"weighted": "up.0.norm", "product": "down.0", "sum": "up"})
    convert(model, blocks=[pattern])
    found = dtypes(model)
    assert (found["weighted"], found["sum"], found["product"]) == (FLOAT, HALF, HALF)


def test_a_pattern_means_whole_names():
    model = network(blocks={"weighted": "up.10", "product": "up.1"})
    convert(model, blocks=["up.1"])
    assert (dtypes(model)["weighted"], dtypes(model)["product"]) == (HALF, FLOAT)


def test_an_unknown_operator_is_refused_with_the_nearest_name():
    with pytest.raises(PassError, match=r"force_fp32: the graph has no operator 'Softmux'; did you mean 'Softmax'\?"):
        convert(network(), operators=["Softmux"])


@pytest.mark.parametrize("operator", ["LayerNormalization", "SkipGroupNorm", "MultiHeadAttention"])
def test_an_operator_that_this_graph_happens_not_to_hold_is_no_error(operator):
    convert(network(), operators=[operator])


def test_an_unknown_block_is_refused_with_the_nearest_name():
    model = network(blocks={"weighted": "up_blocks.0"})
    with pytest.raises(
        PassError, match=r"force_fp32_blocks: no block matches 'up_block.0'; did you mean 'up_blocks.0'"
    ):
        convert(model, blocks=["up_block.0"])


def test_constants_that_float16_cannot_hold_are_counted_and_saturated():
    model = network()
    counts = convert(model)
    assert (counts["constants_saturated"], counts["constants_flushed"]) == (1, 1)
    constant = model.graph.initializers["large.float16"].const_value.numpy()
    assert constant.tolist() == [65504, 0]


def test_nodes_are_counted_by_precision():
    assert convert(network())["nodes_fp16"] == 5
    assert convert(network())["nodes_fp32"] == 2


def test_operands_that_an_operator_takes_in_float32_only_keep_it():
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[1,2,4,4] x, float[2,2,1,1] weight) => (float[1,2,8,8] y) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        convolved = Conv(x, weight)
        y = Resize(convolved, , scales)
    }"""
    model = network(text)
    convert(model)
    (resize,) = (node for node in model.graph if node.op_type == "Resize")
    assert (resize.inputs[0].dtype, resize.inputs[2].dtype, resize.outputs[0].dtype) == (HALF, FLOAT, HALF)


def test_values_without_a_type_get_theirs_before_anything_is_decided():
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[N,2] x, float[2,2] weight) => (float[N,2] y) { a = MatMul(x, weight) b = Softmax(a) y = Neg(b) }"""
    model = network(text)
    assert all(node.outputs[0].dtype is None for node in list(model.graph)[:2])
    convert(model, operators=["Softmax"])
    assert dtypes(model)["b"] == FLOAT


def test_a_value_whose_type_nobody_knows_is_an_error():
    text = """<ir_version: 10, opset_import: ["": 23, "mine": 1]>
    g (float[N,2] x) => (float[N,2] y) { a = mine.Twist(x) y = Neg(a) }"""
    with pytest.raises(PassError, match="the type of 'a', made by Twist, is not known"):
        HalfPrecision(network(text, ())).convert()


def test_a_branch_stays_in_float32():
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[2] x, bool c, float[2] weight) => (float[2] y) {
        z = Add(x, weight)
        w = If(c) <then_branch = a () => (float[2] p) { p = Neg(x) }, else_branch = b () => (float[2] q) { q = Abs(x) }>
        y = Mul(w, z)
    }"""
    model = network(text)
    convert(model, keep_io=True)
    assert (dtypes(model)["w"], dtypes(model)["z"]) == (FLOAT, HALF)


def test_integers_are_left_alone():
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (int32[N] ids, float[9,2] weight) => (float[N,2] y) { y = Gather(weight, ids) }"""
    model = network(text)
    convert(model)
    assert [value.dtype for value in model.graph.inputs] == [ir.DataType.INT32, FLOAT]
    assert model.graph.outputs[0].dtype == HALF


VALUES = np.array([1, 65519, 65520, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-9, -1e-9, 0, 6e-8], np.float32)


def test_finite_values_saturate_and_infinities_stay():
    half, lost = to_half(VALUES)
    expected = [1, 65504, 65504, 65504, -65504, np.inf, -np.inf, np.nan, 0, 0, 0, np.float16(6e-8)]
    np.testing.assert_array_equal(half, np.array(expected, np.float16))
    assert lost == {"flushed": 2, "saturated": 4}


def test_bfloat16_holds_what_float32_does():
    half, lost = to_half(VALUES, ir.DataType.BFLOAT16)
    np.testing.assert_array_equal(half.astype(np.float32), VALUES.astype(half.dtype).astype(np.float32))
    assert half.dtype == ml_dtypes.bfloat16
    assert np.isfinite(half.astype(np.float32)).sum() == np.isfinite(VALUES).sum()
    assert lost == {}


def test_the_largest_float32_numbers_saturate_in_bfloat16():
    values = np.array([3.4e38, -np.finfo(np.float32).max, 3.38e38, np.inf, np.nan], np.float32)
    half, lost = to_half(values, ir.DataType.BFLOAT16)
    most = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    found = half.astype(np.float32)
    np.testing.assert_array_equal(found[[0, 1, 3, 4]], np.array([most, -most, np.inf, np.nan], np.float32))
    assert lost == {"saturated": 2}


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]
)
def test_infinite_values_and_nan_are_counted_in_every_float_type(dtype):
    values = np.random.default_rng(0).standard_normal(300_000).astype(dtype)
    values[:2] = 0, ml_dtypes.finfo(dtype).max
    values[2] = ml_dtypes.finfo(dtype).min
    assert count_not_finite(values) == 0
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        spoilt = values.copy()
        spoilt[[5, 131_071, 131_072, -1]] = value
        assert count_not_finite(spoilt) == 4
        assert count_not_finite(spoilt.reshape(2, -1)) == 4


def test_whole_numbers_are_finite():
    assert count_not_finite(np.full(9, -128, np.int8)) == count_not_finite(np.zeros(0, np.float16)) == 0


def test_bfloat16_is_chosen_as_float16_is():
    model, other = network(), network()
    convert(model, keep_io=True)
    half = HalfPrecision(other, half=ir.DataType.BFLOAT16, keep_io=True)
    assert half.convert() == {"nodes_bf16": 5, "nodes_fp32": 2}
    onnx.checker.check_model(Graph.from_ir(other).data, full_check=True)
    brain = {HALF: ir.DataType.BFLOAT16, FLOAT: FLOAT}
    assert [brain[value.dtype] for node in model.graph for value in node.outputs] == [
        value.dtype for node in other.graph for value in node.outputs
    ]
    assert other.graph.initializers["large.bfloat16"].const_value.numpy()[0] == 99840


def test_nothing_is_counted_where_nothing_is_lost():
    assert to_half(np.array([0.5, -2], np.float32))[1] == {}
    assert to_half(np.zeros((0, 3), np.float32))[1] == {}


def test_other_values_are_rounded_as_numpy_rounds():
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert (to_half(values)[0] == values.astype(np.float16)).all()


def test_a_transposed_matrix_becomes_a_transposed_half():
    values = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
    values[3, 5:9] = 1e-9, 7e4, -7e4, np.inf
    straight, lost = to_half(values)
    turned, counts = to_half(values.T)
    assert (turned == straight.T).all()
    assert counts == lost


def test_the_unet_in_float16_has_a_float32_timestep_and_few_float32_nodes(tiny):
    model = tiny("unet").graph.to_ir()
    counts = convert(model)
    assert [value.dtype.name for value in model.graph.inputs][:3] == ["FLOAT16", "FLOAT", "FLOAT16"]
    assert counts == {"nodes_fp16": 1254, "nodes_fp32": 9}
    first = Graph.from_ir(model)
    HalfPrecision(model).convert()
    assert Graph.from_ir(model) == first


def test_blocks_of_the_unet_can_be_kept_in_float32(tiny):
    model = tiny("unet").graph.to_ir()
    convert(model, blocks=["up_blocks.*.resnets.0", "mid_block"])
    kept = Counter(
        node.metadata_props[BLOCK_KEY].split(".")[0]
        for node in model.graph
        if node.op_type == "GroupNormalization" and node.outputs[0].dtype == FLOAT
    )
    assert kept == {"up_blocks": 8, "mid_block": 5}


STREAM = """
<ir_version: 10, opset_import: ["": 23]>
unet (float[N,4,2] sample, float[N,1,2] gate, float[2,2] weight, float[2] bias) => (float[N,4,2] out, float[N,4,2] raw)
{
    left = MatMul(sample, weight)
    right = MatMul(sample, weight)
    product = Mul(left, right)
    given = MatMul(product, weight)
    biased = Add(given, bias)
    gated = Mul(gate, biased)
    raw = Add(sample, gated)
    normal = LayerNormalization(raw, bias)
    shifted = Add(normal, gate)
    out = MatMul(shifted, weight)
}
"""
PARAMETERS = ("weight", "bias")


def test_a_stream_and_what_leads_to_it_stay_in_float32_and_its_layer_takes_a_part():
    model = network(STREAM, PARAMETERS, {"raw": "blocks.0", "shifted": "blocks.0", "left": "blocks.10.to_out"})
    counts = HalfPrecision(model, streams=("blocks.*",)).convert()
    onnx.checker.check_model(Graph.from_ir(model).data, full_check=True)
    kinds = dtypes(model)
    assert {name for name in ("biased", "gated", "raw.float", "normal") if kinds[name] == FLOAT} == {
        "biased", "gated", "raw.float", "normal",
    }  # fmt: skip
    halves = ("left", "right", "product", "given", "shifted", "out", "raw")
    assert {kinds[name] for name in halves} == {HALF}
    assert (counts["layers_on_a_part"], counts["clipped"]) == (1, 1)
    gate, one = np.ones((1, 1, 2), np.float16), np.ones(2, np.float32)
    feeds = {"sample": np.array([[[300, 1]] * 4], np.float16), "gate": gate, "weight": np.eye(2, dtype=np.float32)}
    found = Evaluation(model, parameter={"weight": feeds["weight"], "bias": one}.__getitem__).run(feeds)
    assert found["raw"][0, 0].tolist() == [65504, 3]
    assert found["out"][0, 0] == pytest.approx([2, 0], abs=2e-3)


def test_without_named_streams_the_same_graph_is_as_it_was():
    model = network(STREAM, PARAMETERS, {"raw": "blocks.0"})
    counts = HalfPrecision(model).convert()
    assert counts == {"nodes_fp16": 10}


def test_a_second_conversion_leaves_a_stream_as_it_is():
    model = network(STREAM, PARAMETERS, {"raw": "blocks.0"})
    HalfPrecision(model, streams=("blocks.*",)).convert()
    first = Graph.from_ir(model)
    HalfPrecision(model, streams=("blocks.*",)).convert()
    assert Graph.from_ir(model) == first


def test_bfloat16_holds_streams():
    model = network(STREAM, PARAMETERS, {"raw": "blocks.0"})
    half = HalfPrecision(model, half=ir.DataType.BFLOAT16, keep_io=True, streams=("blocks.*",))
    assert half.convert() == {"nodes_bf16": 10}
