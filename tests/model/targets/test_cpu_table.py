"""The CPU table held against the installed runtime, by trial sessions."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from olivelike.model.targets import TARGETS

DTYPES = {"f": TensorProto.FLOAT, "h": TensorProto.FLOAT16, "b": TensorProto.BFLOAT16, "d": TensorProto.DOUBLE}
FUSED = {
    "Attention": ([(1, 2, 4), (4, 12), (12,)], {"num_heads": 2}),
    "MultiHeadAttention": ([(1, 2, 4)] * 3, {"num_heads": 2}),
    "GroupNorm": ([(1, 2, 2, 4), (4,), (4,)], {"groups": 2, "activation": 1}),
    "SkipGroupNorm": ([(1, 2, 2, 4), (4,), (4,), (1, 2, 2, 4)], {"groups": 2, "activation": 1}),
    "SkipLayerNormalization": ([(1, 2, 4), (1, 2, 4), (4,)], {}),
    "BiasSplitGelu": ([(1, 2, 4), (4,)], {}),
    "BiasAdd": ([(1, 2, 4), (4,), (1, 2, 4)], {}),
    "NhwcConv": ([(1, 4, 4, 4), (2, 3, 3, 4)], {}),
    "BiasGelu": ([(1, 2, 4), (4,)], {}),
    "FastGelu": ([(1, 2, 4)], {}),
    "QuickGelu": ([(1, 2, 4)], {}),
}
STANDARD = {
    "LayerNormalization": ([(1, 2, 4), (4,)], {}),
    "GroupNormalization": ([(1, 4, 2, 2), (4,), (4,)], {"num_groups": 2}),
    "ai.onnx.Attention": ([(1, 2, 4)] * 3, {"q_num_heads": 2, "kv_num_heads": 2}),
}
ALL = FUSED | STANDARD


def runs_natively(operator, dtype, folder):
    """Whether a session keeps the node as it is: no missing kernel, no casts around it, no body in its place."""
    shapes, attributes = ALL[operator]
    op_type = operator.removeprefix("ai.onnx.")
    names = [f"x{i}" for i in range(len(shapes))]
    scales = {1, 2} if operator in {"GroupNorm", "SkipGroupNorm"} else set()
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT if i in scales else dtype, shape)
        for i, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    domain = "com.microsoft" if operator in FUSED else ""
    node = helper.make_node(op_type, names, ["y"], domain=domain, **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", dtype, None)])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(folder / "placed.onnx")
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except (
        onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
        onnxruntime.capi.onnxruntime_pybind11_state.Fail,
        onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    ):
        return False
    placed = onnx.load(folder / "placed.onnx").graph.node
    return [placed_node.op_type for placed_node in placed] == [op_type]


@pytest.mark.parametrize("operator", ALL)
def test_the_table_names_exactly_the_dtypes_that_run_natively(operator, tmp_path):
    kernel = TARGETS["cpu"].kernels.get(operator)
    table = set() if kernel is None else set(kernel.dtypes)
    assert {letter for letter, dtype in DTYPES.items() if runs_natively(operator, dtype, tmp_path)} == table


def test_every_operator_of_every_target_is_tried():
    untried = {operator for target in TARGETS.values() for operator in target.kernels} - ALL.keys()
    assert not untried, f"give {untried} a node in this file, or no row in the target: nothing asks for them"
