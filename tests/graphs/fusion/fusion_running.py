"""Running weightless graphs on the CPU, weights fed as inputs, functions in place of missing kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnxruntime

from olivelike.graphs.functions import with_functions
from olivelike.model import Graph
from olivelike.model.targets import Target, find_target


def any_width(name: str) -> Target:
    """Return a target without limits on widths: small networks stand for the real ones there."""
    target = find_target(name)
    kernels = {op: dataclasses.replace(kernel, channels=None) for op, kernel in target.kernels.items()}
    return dataclasses.replace(target, kernels=kernels)


def session(graph: Graph) -> onnxruntime.InferenceSession:
    """Open a session on the CPU that runs the graph as it is."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = Graph.from_ir(with_functions(graph.to_ir())).data
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(opened: onnxruntime.InferenceSession, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a session on values by name, cast to the type that the graph takes."""
    half = {value.name for value in opened.get_inputs() if value.type == "tensor(float16)"}
    names = {value.name for value in opened.get_inputs()}
    feeds = {
        name: value.astype(np.float16) if name in half else value for name, value in values.items() if name in names
    }
    return opened.run(None, feeds)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return |actual - expected| / |expected|."""
    difference = actual.astype(np.float64) - expected.astype(np.float64)
    return float(np.linalg.norm(difference) / max(np.linalg.norm(expected.astype(np.float64)), 1e-30))
