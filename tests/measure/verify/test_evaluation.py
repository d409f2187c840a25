"""Running a graph one operator at a time."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from olivelike.errors import PassError
from olivelike.measure.verify.evaluation import Evaluation
from olivelike.measure.verify.float_search import PeakMagnitude
from olivelike.model.graph import BLOCK_KEY
from olivelike.testing import run_pass
from olivelike.testing.parity import materialize_model, open_on_cpu
from olivelike.workflow.passes import Registry

BUILT_IN = Registry.built_in()


def built(nodes, inputs, outputs, initializers=(), dtype=TensorProto.FLOAT16):
    """Return a model whose inputs and outputs are of shape (1, 1)."""
    values = ([helper.make_tensor_value_info(n, dtype, [1, 1]) for n in names] for names in (inputs, outputs))
    graph = helper.make_graph(nodes, "small", *values, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


OVERFLOW = built(
    [
        helper.make_node("MatMul", ["x", "w"], ["big"]),
        helper.make_node("Softsign", ["big"], ["inside"]),
        helper.make_node("Mul", ["big", "s"], ["small"]),
    ],
    ["x"],
    ["inside", "small"],
    [
        helper.make_tensor("w", TensorProto.FLOAT16, [1, 1], [1000.0]),
        helper.make_tensor("s", TensorProto.FLOAT16, [1], [0.001]),
    ],
)
"""x·1000 overflows at x = 100, and ·0.001 brings it back: x in float32, infinite in float16."""


def test_overflow_between_operators_is_seen():
    outputs = Evaluation(ir.from_proto(OVERFLOW)).run({"x": np.array([[100.0]])})
    assert np.isinf(outputs["small"]).all()
    assert outputs["small"].dtype == np.float16


def test_a_whole_session_on_the_cpu_hides_it():
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(OVERFLOW.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (small,) = session.run(["small"], {"x": np.array([[100.0]], np.float16)})
    assert np.isfinite(small).all()


def test_bfloat16_is_rounded_after_each_operator():
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Sub", ["sum", "x"], ["left"])]
    model = built(nodes, ["x", "y"], ["sum", "left"], dtype=TensorProto.BFLOAT16)
    outputs = Evaluation(ir.from_proto(model)).run({"x": np.array([[256.0]]), "y": np.array([[1.0]])})
    assert {name: float(array[0, 0]) for name, array in outputs.items()} == {"sum": 256, "left": 0}
    assert outputs["left"].dtype == ml_dtypes.bfloat16


def test_how_far_a_block_reaches_is_seen_in_bfloat16():
    model = built([helper.make_node("Mul", ["x", "y"], ["z"])], ["x", "y"], ["z"], dtype=TensorProto.BFLOAT16)
    model.graph.node[0].metadata_props.add(key=BLOCK_KEY, value="blocks.0")
    reach = PeakMagnitude()
    feeds = {"x": np.array([[-512.0]]), "y": np.array([[256.0]])}
    Evaluation(ir.from_proto(model)).run(feeds, reach.observe)
    assert reach.largest == {"blocks.0": 131072.0}


def test_casts_to_and_from_bfloat16_round():
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["half"], ["y"], to=TensorProto.FLOAT),
    ]
    model = built(nodes, ["x"], ["y"], dtype=TensorProto.FLOAT)
    model.graph.value_info.append(helper.make_tensor_value_info("half", TensorProto.BFLOAT16, [1, 1]))
    outputs = Evaluation(ir.from_proto(model)).run({"x": np.array([[981.0]])})
    assert (outputs["y"].dtype, float(outputs["y"][0, 0])) == (np.float32, 980)


@pytest.mark.parametrize("component", ["text_encoder", "vae_decoder", "unet"])
def test_outputs_are_those_of_a_whole_session_in_float32(little, component, tmp_path):
    model = little(component)
    materialize_model(model, tmp_path)
    whole = open_on_cpu(tmp_path)
    rng = np.random.default_rng(0)
    sizes = {"batch": 2, "height": 16, "width": 8, "sequence": 9}
    feeds = {}
    for value in whole.get_inputs():
        shape = [
            dim if isinstance(dim, int) else 1 if "time_" in dim else sizes[dim.rpartition("_")[2]]
            for dim in value.shape
        ]
        dtype = np.int32 if "int32" in value.type else np.float32
        feeds[value.name] = (
            rng.integers(0, 900, shape).astype(dtype)
            if value.name != "sample"
            else rng.normal(size=shape).astype(dtype)
        )
    expected = dict(zip([o.name for o in whole.get_outputs()], whole.run(None, feeds), strict=True))
    found = Evaluation(model.graph.to_ir(), parameter=model.parameter).run(feeds)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


def test_fused_operators_of_any_target_run(little):
    fused = run_pass(BUILT_IN.get("fuse").cls, little("vae_decoder"), target="cuda")
    half = run_pass(BUILT_IN.get("float16").cls, fused, target="cuda")
    operators = {node.op_type for node in half.graph.to_ir().graph}
    assert {"NhwcConv", "GroupNorm"} <= operators
    outputs = Evaluation(half.graph.to_ir(), parameter=half.parameter).run(
        {"latent_sample": np.random.default_rng(0).normal(size=(1, 4, 8, 6))}
    )
    assert outputs["sample"].shape == (1, 3, 16, 12)
    assert np.isfinite(outputs["sample"]).all()


def test_weights_are_what_materialize_writes(little):
    model = little("vae_decoder")
    name = next(name for name in model.weights if name.endswith("conv_in.weight"))
    loud = model.tensors.write(np.full_like(model.parameter(name), 1e6))
    half = run_pass(
        BUILT_IN.get("float16").cls, model.replace(weights=model.weights.replace({name: loud})), target="cpu"
    )
    seen = {}

    def observe(node, operands, _):
        seen.setdefault(node.op_type, operands)

    Evaluation(half.graph.to_ir(), parameter=half.parameter).run({"latent_sample": np.ones((1, 4, 4, 4))}, observe)
    # Weights beyond float16 are written as its largest number, not as infinity.
    assert all(np.isfinite(operand).all() for operand in seen["Conv"] if operand is not None)


def test_one_parameter_is_read_at_a_time(little):
    model = little("vae_decoder")
    alive = []

    class Counted(np.ndarray):
        def __array_finalize__(self, _):
            pass

        def __del__(self):
            alive.pop()

    def read(name):
        array = model.parameter(name).view(Counted)
        alive.append(name)
        assert len(alive) <= 2  # those of one operator
        return array

    Evaluation(model.graph.to_ir(), parameter=read).run({"latent_sample": np.ones((1, 4, 4, 4))})


def test_a_timestep_without_dimensions_is_fed_as_such():
    scalar = built([helper.make_node("Mul", ["x", "t"], ["y"])], ["x"], ["y"], dtype=TensorProto.FLOAT)
    scalar.graph.input.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, []))
    outputs = Evaluation(ir.from_proto(scalar)).run({"x": np.array([[2.0]]), "t": np.array([3.0])})
    assert outputs["y"] == [[6.0]]


def test_an_operator_with_a_graph_inside_is_refused():
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    model = built(
        [helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)],
        ["x"],
        ["y"],
        [helper.make_tensor("yes", TensorProto.BOOL, [], [True])],
        TensorProto.FLOAT,
    )
    with pytest.raises(PassError, match="has a graph inside"):
        Evaluation(ir.from_proto(model))
