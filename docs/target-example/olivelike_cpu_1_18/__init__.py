"""The target `cpu_1_18`: ONNX Runtime 1.18 on a CPU, which reads older files than what olivelike's own `cpu` is for."""

from olivelike.model.plugin_targets import PluginTarget
from olivelike.model.targets import Kernel, Target

_RUN = "run on onnxruntime 1.18.1: the demo's networks, at most 7.3e-7 from 1.31.1"

TARGET = PluginTarget(
    Target(
        "cpu_1_18",
        "CPUExecutionProvider",
        opset=21,
        ir_version=10,
        precision="fp32",
        kernels={"MultiHeadAttention": Kernel(frozenset("f")), "QuickGelu": Kernel(frozenset("f"))},
    ),
    sources={
        "opset": "run on onnxruntime 1.18.1: it opens a file of opset 21 and refuses one of 22",
        "IR version": "run on onnxruntime 1.18.1: it opens a file of IR version 10 and refuses one of 11",
        "MultiHeadAttention": _RUN,
        "QuickGelu": _RUN,
    },
    package="onnxruntime",
)
