"""The target `cpu_1_18`: ONNX Runtime 1.18 on a CPU, which reads older files than what olivelike's own `cpu` is for."""

from olivelike.model.plugin_targets import PluginTarget
from olivelike.model.targets import Kernel, Target

_RUN = "run on onnxruntime 1.18.1: the demo's networks open and give the numbers of 1.31.1"

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
        "opset": "its message for a file of opset 22, of onnxruntime 1.18.1",
        "IR version": "its message for a file of IR version 11, of onnxruntime 1.18.1",
        "MultiHeadAttention": _RUN,
        "QuickGelu": _RUN,
    },
    package="onnxruntime",
)
