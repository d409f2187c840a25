"""One-node models of com.microsoft operators, and sessions on the CPU provider."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

from olivelike.graphs.functions import with_functions

FLOAT32_OUTPUTS = {"SkipLayerNormalization": {1: onnx.TensorProto.FLOAT, 2: onnx.TensorProto.FLOAT}}


def one_node(op_type, arrays, outputs=(True,), opset=20, **attributes):
    """A model whose inputs are the present `arrays`; `outputs` says which outputs are asked for."""
    names = [f"input_{i}" if array is not None else "" for i, array in enumerate(arrays)]
    results = [f"output_{i}" if asked else "" for i, asked in enumerate(outputs)]
    own = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    special = FLOAT32_OUTPUTS.get(op_type, {})
    graph = helper.make_graph(
        [helper.make_node(op_type, names, results, domain="com.microsoft", name=op_type, **attributes)],
        "one_node",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays, strict=True)
            if array is not None
        ],
        [helper.make_tensor_value_info(n, special.get(i, own), None) for i, n in enumerate(results) if n],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds(arrays):
    return {f"input_{i}": array for i, array in enumerate(arrays) if array is not None}


def run_on_cpu(model, inputs):
    """Run with optimisations off: the runtime must not fuse a function's body back into the kernel."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def run_kernel(op_type, arrays, **kwargs):
    return run_on_cpu(one_node(op_type, arrays, **kwargs), feeds(arrays))


def run_meaning(op_type, arrays, **kwargs):
    model = ir.from_proto(one_node(op_type, arrays, **kwargs))
    stated = ir.to_proto(with_functions(model, all=True))
    assert {node.domain for node in stated.graph.node} == {"olivelike.graphs.functions"}
    return run_on_cpu(stated, feeds(arrays))


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def assert_close(found, wanted, tolerance):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
        assert difference <= tolerance * np.abs(other.astype(np.float64)).max()
