"""Targets: named execution providers with what their runtime reads and which precision they want.

Optimising needs no target hardware; everything that a pass asks about a target is data here, a table each. Where each
claim comes from is on the page `docs/claims.md`, outside this file, which is in the keys of results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from olivelike._text import did_you_mean
from olivelike._untrusted import Json, JsonView
from olivelike.errors import PluginError, UsageError

Precision = Literal["fp32", "fp16", "bf16"]

CONTRIB_DOMAIN: Final = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


@dataclass(frozen=True)
class Kernel:
    """Types and attributes that a provider's implementation of one operator accepts."""

    dtypes: frozenset[str]
    """Tensor types: `f` float32, `h` float16, `b` bfloat16, `d` float64."""
    layouts: frozenset[str] = frozenset()
    """`NHWC`, `NCHW`; empty where the operator has no such choice."""
    channels: frozenset[int] | None = None
    """The only widths of the last axis that run; `None` for any."""
    packed: bool = False
    """Attention also takes packed QKV (B,S,N,3,D) and packed KV (B,L,N,2,D)."""
    float32_inputs: tuple[int, ...] = ()
    """Positions of inputs that stay float32 when the others are float16."""

    def to_json(self) -> Json:
        """Return the fields as JSON, sets sorted."""
        return {
            "dtypes": "".join(sorted(self.dtypes)),
            "layouts": sorted(self.layouts),
            "channels": None if self.channels is None else sorted(self.channels),
            "packed": self.packed,
            "float32_inputs": list(self.float32_inputs),
        }


@dataclass(frozen=True)
class TargetChoice:
    """A workflow's choices of a target, as records keep them."""

    name: str
    precision: str = ""
    device_id: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the provider."""
    session_options: Mapping[str, object] = field(default_factory=dict)
    """ONNX Runtime's configuration entries of sessions."""
    run_options: Mapping[str, object] = field(default_factory=dict)
    """Configuration entries of runs."""
    plugin: str = ""
    """The distribution that brings the target, with its version; empty for ours."""


@dataclass(frozen=True)
class Target:
    """One execution provider and what decides how a graph is lowered for it."""

    name: str
    provider: str
    """Execution provider as ONNX Runtime names it; `OpenVINO` means the `openvino` package itself, `WindowsML` whatever
    Windows ML has for the machine."""
    opset: int
    """Highest `ai.onnx` opset that every supported release of the runtime reads and the provider has kernels for."""
    ir_version: int
    """Highest ONNX IR version that every supported release of the runtime reads."""
    precision: Precision
    """The precision that shipped workflows choose for it."""
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    """Fused operators that run there, and others that are avoided. `Attention` is com.microsoft's, `ai.onnx.Attention`
    the standard one, and so it is with `RotaryEmbedding`."""
    avoided: Mapping[str, str] = field(default_factory=dict)
    """Operators that run there and that fusion leaves alone all the same, with the reason."""
    sizes_on_cpu: bool = False
    """Whether arithmetic on sizes leaves the provider for the CPU, so that graphs are spelled without it."""
    conv_channels: int = 1
    """Convolutions of more input channels than this are right for multiples of it; others get channels of zeros."""
    block_weights: tuple[int, ...] = ()
    """Bits of weights in blocks on which DequantizeLinear runs there."""
    block_matmul: str = ""
    """Tensor types, as of kernels, in which MatMulNBits runs there on weights in blocks."""
    block_matmul_bits: tuple[int, ...] = (4, 8)
    """Bits of those weights."""
    block_symmetric: bool = True
    """Whether those weights may have no zero points there."""
    rounded: Literal["", "int8", "fp8"] = ""
    """In which type layers between QuantizeLinear and DequantizeLinear are computed."""
    rounded_outputs: bool = False
    """Whether convolutions of 8 bits give nothing but 8 bits, so that what they give is rounded as well."""
    block_rows: bool = False
    """Whether rows of tables in 8 bits are looked up there before they are widened."""
    bfloat16: bool = False
    """Whether graphs run in bfloat16 there."""
    bfloat16_operators: frozenset[str] = frozenset()
    """The only operators that do, of both domains; the others stay in float32. Empty for all."""
    device_id: int = 0
    options: JsonView = field(default_factory=dict)
    """Provider options, passed to the session as they are."""
    session_options: JsonView = field(default_factory=dict)
    """ONNX Runtime's session configuration entries."""
    run_options: JsonView = field(default_factory=dict)
    """ONNX Runtime's run configuration entries."""
    plugin: str = ""
    """The distribution that brings it, with its version; empty for ours."""

    def kernel(self, op_type: str) -> Kernel | None:
        """Return the kernel that fusion may aim at, or `None`: there is none, or it is better avoided."""
        return None if op_type in self.avoided else self.kernels.get(op_type)

    def why_not(self, op_type: str) -> str | None:
        """Return why fusion must not write `op_type` for this target, or `None` if it may."""
        if op_type in self.avoided:
            return self.avoided[op_type]
        return None if op_type in self.kernels else f"{self.name} has no kernel for {op_type}"

    def runs_bfloat16(self, op_type: str) -> bool:
        """Say whether an operator runs in bfloat16."""
        return self.bfloat16 and (not self.bfloat16_operators or op_type in self.bfloat16_operators)

    def without_avoiding(self, operators: Collection[str]) -> Target:
        """Return the target with fewer operators avoided."""
        kept = {name: reason for name, reason in self.avoided.items() if name not in operators}
        return replace(self, avoided=kept)

    def choice(self) -> TargetChoice:
        """Return what a workflow chose: enough to name the target again with `find_target` and `replace`."""
        return TargetChoice(
            self.name,
            self.precision,
            self.device_id,
            dict(self.options),
            dict(self.session_options),
            dict(self.run_options),
            self.plugin,
        )

    def lowering(self) -> Json:
        """Return what another process finds the target by, as passes may see it: nothing of sessions."""
        choice: Json = {"name": self.name, "precision": self.precision}
        if not self.plugin:
            return choice
        from olivelike.digest import digest_json

        return choice | {"table": digest_json(["target/1", self.facts()])}

    @classmethod
    def lowered(cls, choice: JsonView) -> Target:
        """Return the target of a `lowering`.

        Raises `UsageError` if it is not known here, and `PluginError` if its plugin can't be loaded here, or offers
        another table here.
        """
        own = replace(find_target(choice["name"]), device_id=0, options={})
        found = replace(own, precision=choice["precision"])
        if found.lowering() != dict(choice):
            raise PluginError(
                f"target {found.name!r} ({found.plugin or 'built-in'}) has another table here than where the run was "
                "planned; install one version of its plugin everywhere, and start again"
            )
        return found

    def facts(self) -> Json:
        """Return what may change a pass's result, as JSON: everything but origin, device, options of sessions."""
        return {
            "name": self.name,
            "provider": self.provider,
            "opset": self.opset,
            "ir_version": self.ir_version,
            "precision": self.precision,
            "bfloat16": self.bfloat16,
            "bfloat16_operators": sorted(self.bfloat16_operators),
            "block_weights": list(self.block_weights),
            "block_matmul": self.block_matmul,
            "block_matmul_bits": list(self.block_matmul_bits),
            "block_symmetric": self.block_symmetric,
            "rounded": self.rounded,
            "rounded_outputs": self.rounded_outputs,
            "block_rows": self.block_rows,
            "sizes_on_cpu": self.sizes_on_cpu,
            "conv_channels": self.conv_channels,
            "kernels": {name: kernel.to_json() for name, kernel in sorted(self.kernels.items())},
            "avoided": dict(sorted(self.avoided.items())),
        }


_F: Final = frozenset("f")
_FH: Final = frozenset("fh")
_FHB: Final = frozenset("fhb")
_FHD: Final = frozenset("fhd")
_FHBD: Final = frozenset("fhbd")
_NHWC: Final = frozenset({"NHWC"})
_NCHW: Final = frozenset({"NCHW"})

# The CPU provider; a test holds this table against the installed runtime.
#
# It has no kernel for GroupNormalization, which would run as its function body.
CPU: Final = Target(
    "cpu",
    "CPUExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp32",
    kernels={
        "Attention": Kernel(_F),
        "MultiHeadAttention": Kernel(_F),
        "SkipLayerNormalization": Kernel(_FHB),
        "RMSNormalization": Kernel(_FHD),
        "ai.onnx.RotaryEmbedding": Kernel(_FH),
        "RotaryEmbedding": Kernel(_FH),
        "LayerNormalization": Kernel(_FHBD),
        "BiasGelu": Kernel(_F),
        "FastGelu": Kernel(_F),
        "QuickGelu": Kernel(_F),
        "ai.onnx.Attention": Kernel(_FH),
    },
    block_weights=(4, 8),
    block_matmul="fh",
    block_rows=True,
    rounded="int8",
    rounded_outputs=True,
    avoided={"SkipLayerNormalization": "its CPU kernel is slower than Add and LayerNormalization apart"},
)
"""Any machine: ONNX Runtime's CPU provider."""

# The CUDA provider: a kernel for every fusion, BiasSplitGelu for the widths of Stable Diffusion alone.
CUDA: Final = Target(
    "cuda",
    "CUDAExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FHB),
        "MultiHeadAttention": Kernel(_FHB, packed=True),
        "GroupNorm": Kernel(_FH, layouts=_NHWC, float32_inputs=(1, 2)),
        "SkipGroupNorm": Kernel(_FH, layouts=_NHWC, float32_inputs=(1, 2)),
        "SkipLayerNormalization": Kernel(_FHB),
        "RMSNormalization": Kernel(_FHBD),
        "ai.onnx.RotaryEmbedding": Kernel(_FHB),
        "RotaryEmbedding": Kernel(_FHB),
        "LayerNormalization": Kernel(_FHBD),
        "BiasSplitGelu": Kernel(_FH, channels=frozenset({2560, 5120, 6144, 10240, 12288})),
        "BiasAdd": Kernel(_FH),
        "NhwcConv": Kernel(_FH, layouts=_NHWC),
        "BiasGelu": Kernel(_FHBD),
        "FastGelu": Kernel(_FHBD),
        "QuickGelu": Kernel(_FHBD),
        "ai.onnx.Attention": Kernel(_FHB),
        "GroupNormalization": Kernel(_FH, layouts=_NCHW),
        "ArgMax": Kernel(_FHD),
    },
    avoided={"ArgMax": "its kernel takes no whole numbers, which would leave the device, and CUDA graphs with them"},
    block_weights=(4,),  # DequantizeLinear of 8 bits in blocks is in its registry, and ends in an error.
    block_matmul="fhb",
    bfloat16=True,
    # What transformers are made of. Convolutions and sines have such kernels from opset 22 on, norms of images none.
    bfloat16_operators=frozenset({
        "Abs", "Add", "Attention", "BiasGelu", "Concat", "Div", "Erf", "Exp", "Expand", "FastGelu", "Flatten",
        "Gather", "Gelu", "Gemm", "Identity", "LayerNormalization", "MatMul", "MatMulNBits", "Max", "Min",
        "Mul", "MultiHeadAttention", "Neg", "Pow", "QuickGelu", "RMSNormalization", "ReduceMean", "ReduceSum",
        "Reshape", "RotaryEmbedding", "ScatterND", "Sigmoid", "SkipLayerNormalization", "Slice", "Softmax",
        "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
    }),
)  # fmt: skip
"""NVIDIA GPUs."""

# DirectML, the Windows provider for any GPU; its last release is onnxruntime-directml 1.24.4.
#
# That release parses up to opset 25 and IR 13. But its kernels end at opset 21, and a runtime matches kernels by the
# opset that an operator's form dates from: a graph stamped 22 or newer would leave each Conv to the CPU.
# There is no kernel for ai.onnx GroupNormalization, Gelu and Attention: they run as their function bodies.
DIRECTML: Final = Target(
    "directml",
    "DmlExecutionProvider",
    opset=21,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FH),
        "MultiHeadAttention": Kernel(_FH, packed=True),
        "GroupNorm": Kernel(_FH, layouts=_NHWC | _NCHW),
        "SkipLayerNormalization": Kernel(_FH),
        "RotaryEmbedding": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasSplitGelu": Kernel(_FH),
        "BiasAdd": Kernel(_FH),
        "NhwcConv": Kernel(_FH, layouts=_NHWC),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "QuickGelu": Kernel(_FH),
    },
    # Its MatMulNBits takes numbers without zero points as those from 0 on, and rows of zero points of 4 bits as one.
    block_matmul="fh",
    block_matmul_bits=(8,),
    block_symmetric=False,
)
"""Windows, any GPU with DirectX 12."""

# MIGraphX for AMD GPUs, `rocm` by its older name.
#
# AMD tests its parser up to opset 19, and it goes by operator names: 21 is what GroupNormalization and Gelu need.
_BETTER_ALONE: Final = "MIGraphX fuses this itself, and AMD's own recipe turns the fusion off"

MIGRAPHX: Final = Target(
    "migraphx",
    "MIGraphXExecutionProvider",
    opset=21,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FH),
        "MultiHeadAttention": Kernel(_FH),
        "GroupNorm": Kernel(_FH, layouts=_NHWC),
        "SkipLayerNormalization": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "GroupNormalization": Kernel(_FH, layouts=_NCHW),
    },
    avoided=dict.fromkeys(("Attention", "GroupNorm", "MultiHeadAttention", "SkipLayerNormalization"), _BETTER_ALONE),
)
"""AMD GPUs on Linux."""

# OpenVINO, through the `openvino` package, which reads standard operators and fuses by itself.
_OPENS_SLOWLY: Final = "OpenVINO multiplies its weights by alpha as it opens a network, by 1, too"

OPENVINO: Final = Target(
    "openvino",
    "OpenVINO",
    opset=23,
    ir_version=11,
    precision="bf16",
    kernels={
        "LayerNormalization": Kernel(_FHB),
        "GroupNormalization": Kernel(_FHB, layouts=_NCHW),
        "ai.onnx.Attention": Kernel(_FHB),
        "RMSNormalization": Kernel(_FHB),
        "ai.onnx.RotaryEmbedding": Kernel(_FHB),
        "Gemm": Kernel(_FHB),
    },
    avoided={"Gemm": _OPENS_SLOWLY},
    bfloat16=True,
    block_weights=(4, 8),
    rounded="int8",
)
"""Intel CPUs and GPUs; the runtime chooses its own inner precision."""

# OpenVINO as a plugin of ONNX Runtime, which leaves ai.onnx Attention to the CPU, each in a partition of its own.
OPENVINO_EP: Final = Target(
    "openvino_ep",
    "OpenVINOExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp32",
    kernels={"LayerNormalization": Kernel(_F), "GroupNormalization": Kernel(_F, layouts=_NCHW), "Gemm": Kernel(_F)},
    avoided={"Gemm": _OPENS_SLOWLY},
)
"""Intel CPUs, GPUs and NPUs, for programs that use ONNX Runtime."""

# TensorRT, which takes standard operators only and fuses by itself.
TENSORRT: Final = Target(
    "tensorrt",
    "TensorrtExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={"LayerNormalization": Kernel(_FH), "GroupNormalization": Kernel(_FH, layouts=_NCHW)},
    rounded="fp8",
)
"""NVIDIA GPUs, with engines built on first use."""

# TensorRT for RTX, a plugin: it takes standard operators and fuses by itself, as TensorRT does.
TENSORRT_RTX: Final = Target(
    "tensorrt_rtx",
    "NvTensorRTRTXExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={"LayerNormalization": Kernel(_FH), "GroupNormalization": Kernel(_FH, layouts=_NCHW)},
    rounded="fp8",
)
"""NVIDIA RTX GPUs since Ampere (RTX 30), with engines built on the machine in seconds."""

# Windows ML: DirectML and its successors, so what is written is what all of them read.
#
# Its DirectML has the registry of 1.24.4, which ends at opset 21; those of AMD, Intel, NVIDIA and Qualcomm take
# standard operators and fuse by themselves.
WINDOWSML: Final = Target(
    "windowsml",
    "WindowsML",
    opset=21,
    ir_version=11,
    precision="fp16",
    kernels={"LayerNormalization": Kernel(_FH)},
    options={"policy": "PREFER_GPU"},
)
"""Windows 11, whatever GPU or NPU: the provider that Windows has for it."""

# WebGPU: browsers, and native GPUs through Dawn; `make test-webgpu` holds this table against onnxruntime-webgpu 1.27.0.
#
# GroupNorm, SkipGroupNorm and NhwcConv have no kernel, packed attention is not implemented, and the shader of
# BiasSplitGelu does not compile in float16.
_WRONG_ON_VULKAN: Final = (
    "WebGPU's own attention is wrong by some percent on Vulkan, where values of one tile of keys leak into the next; "
    "`write_avoided` writes it for devices with Direct3D or Metal"
)

WEBGPU: Final = Target(
    "webgpu",
    "WebGpuExecutionProvider",
    opset=23,
    ir_version=11,
    precision="fp16",
    kernels={
        "Attention": Kernel(_FH),
        "MultiHeadAttention": Kernel(_FH),
        "SkipLayerNormalization": Kernel(_FH),
        "RotaryEmbedding": Kernel(_FH),
        "LayerNormalization": Kernel(_FH),
        "BiasSplitGelu": Kernel(_F),
        "BiasAdd": Kernel(_FH),
        "BiasGelu": Kernel(_FH),
        "FastGelu": Kernel(_FH),
        "QuickGelu": Kernel(_FH),
    },
    avoided={
        **dict.fromkeys(("Attention", "MultiHeadAttention"), _WRONG_ON_VULKAN),
        "BiasAdd": "WebGPU keeps one shader of it for all dtypes: networks in two precisions side by side get NaN",
    },
    sizes_on_cpu=True,
    block_weights=(4, 8),
    block_matmul="fh",
    conv_channels=4,  # Those of 6, 9, 15, … channels are wrong: the 9 of inpainting, for one.
)
"""Browsers and native applications."""


_ALL: Final = (CPU, OPENVINO, OPENVINO_EP, CUDA, TENSORRT, TENSORRT_RTX, DIRECTML, WINDOWSML, MIGRAPHX, WEBGPU)

TARGETS: Final[Mapping[str, Target]] = {target.name: target for target in _ALL}
"""Our targets by name; those of plugins are in `plugin_targets`."""

ALIASES: Final[Mapping[str, str]] = {
    "dml": "directml", "trt": "tensorrt", "nvidia": "cuda", "intel": "openvino", "rocm": "migraphx",
    "trt_rtx": "tensorrt_rtx", "winml": "windowsml",
}  # fmt: skip
"""Other names, and the targets that they mean; the ROCm provider left ONNX Runtime in 1.23."""

_SEVERAL: Final[Mapping[str, str]] = {
    "gpu": "cuda (NVIDIA), directml (Windows), migraphx (AMD), openvino (Intel)",
    "amd": "directml (Windows), migraphx (Linux)",
}
"""Names that may mean several targets."""


def targets_that(can: Callable[[Target], bool]) -> str:
    """Return the names of the targets that can do something, for messages: "`cpu`, `cuda` or `webgpu`"."""
    *names, last = sorted(f"`{target.name}`" for target in _ALL if can(target))
    return f"{', '.join(names)} or {last}" if names else last


def find_target(name: str) -> Target:
    """Return the target called `name`, or by another name of it.

    Raises `UsageError` for an unknown name; the message has the nearest known one. Raises `PluginError` if a plugin
    offers it and can't be loaded.
    """
    if (target := known_target(name)) is not None:
        return target
    if several := _SEVERAL.get(name.lower()):
        raise UsageError(f"{name!r} may mean several targets; say which: {several}")
    from olivelike.model.plugin_targets import target_names

    raise UsageError(f"unknown target {name!r}; {did_you_mean(name, [*target_names(), *ALIASES], 'targets')}")


def known_target(name: str) -> Target | None:
    """Return the target called `name`, or by another name of it, ours or a plugin's; `None` if there is none.

    Raises `PluginError` if a plugin offers it and can't be loaded.
    """
    if (ours := TARGETS.get(ALIASES.get(name, name))) is not None:
        return ours
    from olivelike.model.plugin_targets import find_plugin_target

    found = find_plugin_target(name)
    return None if found is None else found.target


def float32_inputs(target: Target | None, op_type: str) -> frozenset[int]:
    """Return the positions of a fused operator's inputs that stay float32 in half precision on `target`."""
    kernel = None if target is None else target.kernels.get(op_type)
    return frozenset() if kernel is None else frozenset(kernel.float32_inputs)
