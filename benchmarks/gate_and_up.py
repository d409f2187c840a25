"""A gated feed-forward network (SwiGLU) on the CPU: gate and up as two MatMuls, or packed into one; in turns, medians.

    python benchmarks/gate_and_up.py                      # klein's, Z-Image's and Qwen3's widths
    python benchmarks/gate_and_up.py 3072 9216 --tokens 1536

Packed, halves are parted by a Split behind the MatMul. `QuickGelu` is SiLU in one operator (alpha 1). Weights are
random, in float32 and in 8 bits (MatMulNBits, blocks of 128, with activations in float and in 8 bits). Seconds are of
the processor, one thread; the output projection is not measured.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

_PUBLISHED: Final = {"klein": (3072, 9216), "Z-Image": (3840, 10240), "Qwen3-4B": (2560, 9728)}
_BLOCK: Final = 128
_KINDS: Final = {"float32": None, "w8": 0, "w8, int8_compute": 4}
"""Weights → `accuracy_level` of MatMulNBits."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("widths", type=int, nargs="*", help="of what it takes, and between")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    networks = {"given": tuple(options.widths)} if options.widths else _PUBLISHED
    print(
        "| network | weights | two | packed | two, QuickGelu | packed / two | QuickGelu / two |\n" + "| --- " * 7 + "|"
    )
    for name, (width, inner) in networks.items():
        for kind, level in _KINDS.items():
            forms = {
                "two": opened(width, inner, level, packed=False, quick=False),
                "packed": opened(width, inner, level, packed=True, quick=False),
                "quick": opened(width, inner, level, packed=False, quick=True),
            }
            x = np.random.default_rng(1).standard_normal((1, options.tokens, width), np.float32)
            results = [run(x) for run in forms.values()]
            assert all(np.allclose(one, results[0], atol=1e-3) for one in results)
            turns: dict[str, list[float]] = {form: [] for form in forms}
            for _ in range(options.rounds):
                for form, run in forms.items():
                    before = processor_seconds()
                    run(x)
                    turns[form].append(processor_seconds() - before)
            two, packed, quick = (statistics.median(turns[form]) for form in forms)
            seconds, ratios = f"{two:.3f} | {packed:.3f} | {quick:.3f}", f"{packed / two:.3f} | {quick / two:.3f}"
            print(f"| {name} | {kind} | {seconds} | {ratios} |", flush=True)


def opened(width: int, inner: int, level: int | None, *, packed: bool, quick: bool) -> Callable[[Any], Any]:
    """Return what runs one form."""
    random = np.random.default_rng(0)
    matrices = [random.standard_normal((inner, width), np.float32) / np.float32(np.sqrt(width)) for _ in range(2)]
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def linear(matrix: Any, result: str) -> None:
        if level is None:
            weights.append(numpy_helper.from_array(np.ascontiguousarray(matrix.T), f"{result}.w"))
            nodes.append(helper.make_node("MatMul", ["x", f"{result}.w"], [result]))
            return
        rows = len(matrix)
        blocks = matrix.reshape(rows, -1, _BLOCK)
        scales = np.abs(blocks).max(-1) / 127
        numbers = (np.rint(blocks / scales[..., None]) + 128).astype(np.uint8)
        weights.append(numpy_helper.from_array(numbers, f"{result}.w"))
        weights.append(numpy_helper.from_array(scales.reshape(-1).astype(np.float32), f"{result}.s"))
        nodes.append(
            helper.make_node(
                "MatMulNBits", ["x", f"{result}.w", f"{result}.s"], [result], domain="com.microsoft",
                K=width, N=rows, bits=8, block_size=_BLOCK, accuracy_level=level,
            )
        )  # fmt: skip

    if packed:
        linear(np.concatenate(matrices), "both")
        nodes.append(helper.make_node("Split", ["both"], ["gate", "up"], axis=-1, num_outputs=2))
    else:
        linear(matrices[0], "gate")
        linear(matrices[1], "up")
    if quick:
        nodes.append(helper.make_node("QuickGelu", ["gate"], ["silu"], domain="com.microsoft", alpha=1.0))
    else:
        nodes.append(helper.make_node("Sigmoid", ["gate"], ["sigmoid"]))
        nodes.append(helper.make_node("Mul", ["gate", "sigmoid"], ["silu"]))
    nodes.append(helper.make_node("Mul", ["silu", "up"], ["y"]))
    graph = helper.make_graph(
        nodes, "gate_and_up",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "tokens", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "tokens", inner])],
        weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # The runtime would write QuickGelu itself.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def processor_seconds() -> float:
    """Return those of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
