"""The CPU table held against the installed runtime, by trial sessions."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest

from olivelike.model.targets import TARGETS
from tests.fixtures.one_node import DTYPES, NODES


def runs_natively(operator, letter, folder):
    """Whether a session keeps the node as it is: no missing kernel, no casts around it, no body in its place."""
    node = NODES[operator]
    model = node.model(letter, (1, 2) if operator in {"GroupNorm", "SkipGroupNorm"} else ())
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
    return [placed_node.op_type for placed_node in placed] == [node.op_type]


@pytest.mark.parametrize("operator", sorted(NODES.keys() - {"ArgMax", "Gemm"}))  # They are no fusions.
def test_the_table_names_exactly_the_dtypes_that_run_natively(operator, tmp_path):
    kernel = TARGETS["cpu"].kernels.get(operator)
    table = set() if kernel is None else set(kernel.dtypes)
    assert {letter for letter in DTYPES if runs_natively(operator, letter, tmp_path)} == table


def test_every_operator_of_every_target_is_tried():
    untried = {operator for target in TARGETS.values() for operator in target.kernels} - NODES.keys()
    assert not untried, f"give {untried} a node in tests/fixtures/one_node.py, or no row in the target"
