"""What a target is: an execution provider, what its runtime reads, and the fused operators that it has kernels for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Precision = Literal["fp32", "fp16", "bf16"]

CONTRIB_DOMAIN: Final = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


@dataclass(frozen=True)
class Kernel:
    """What a provider's implementation of one operator accepts."""

    dtypes: frozenset[str]
    """Tensor types: `f` float32, `h` float16, `b` bfloat16, `d` float64."""
    layouts: frozenset[str] = frozenset()
    """`NHWC`, `NCHW`; empty where the operator has no such choice."""
    channels: frozenset[int] | None = None
    """The only widths of the last axis that run; `None` for any."""
    packed: bool = False
    """Attention also takes packed QKV (B,S,N,3,D) and packed KV (B,L,N,2,D)."""
    causal: bool = True
    """Attention also takes `unidirectional`."""
    float32_inputs: tuple[int, ...] = ()
    """Positions of inputs that stay float32 when the others are float16."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, sets sorted."""
        return {
            "dtypes": "".join(sorted(self.dtypes)),
            "layouts": sorted(self.layouts),
            "channels": None if self.channels is None else sorted(self.channels),
            "packed": self.packed,
            "causal": self.causal,
            "float32_inputs": list(self.float32_inputs),
        }


@dataclass(frozen=True)
class TargetChoice:
    """What a workflow chose of a target, as records keep it."""

    name: str
    precision: str = ""
    device_id: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    """Of the provider."""
    session_options: Mapping[str, object] = field(default_factory=dict)
    """ONNX Runtime's configuration entries of sessions."""
    run_options: Mapping[str, object] = field(default_factory=dict)
    """Those of runs."""


@dataclass(frozen=True)
class Target:
    """One execution provider and what decides how a graph is lowered for it."""

    name: str
    provider: str
    """Execution provider as ONNX Runtime names it; `OpenVINO` means the `openvino` package itself."""
    opset: int
    """Highest `ai.onnx` opset that every supported release of the runtime reads and the provider has kernels for."""
    ir_version: int
    """Highest ONNX IR version that every supported release of the runtime reads."""
    precision: Precision
    """The precision that shipped workflows choose for it."""
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    """Fused operators that run there. `Attention` is com.microsoft's, `ai.onnx.Attention` the standard one."""
    avoided: Mapping[str, str] = field(default_factory=dict)
    """Operators that run there and that fusion leaves alone all the same, with the reason."""
    bfloat16: bool = False
    """Whether whole graphs run in bfloat16 there."""
    device_id: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Provider options, passed to the session as they are."""
    session_options: Mapping[str, Any] = field(default_factory=dict)
    """ONNX Runtime's session configuration entries."""
    run_options: Mapping[str, Any] = field(default_factory=dict)
    """ONNX Runtime's run configuration entries."""

    def kernel(self, op_type: str) -> Kernel | None:
        """Return the kernel that fusion may aim at, or `None`: there is none, or it is better avoided."""
        return None if op_type in self.avoided else self.kernels.get(op_type)

    def why_not(self, op_type: str) -> str | None:
        """Return why fusion must not write `op_type` for this target, or `None` if it may."""
        if op_type in self.avoided:
            return self.avoided[op_type]
        return None if op_type in self.kernels else f"{self.name} has no kernel for {op_type}"

    def choice(self) -> TargetChoice:
        """Return what a workflow chose: enough to name the target again with `find_target` and `replace`."""
        return TargetChoice(
            self.name,
            self.precision,
            self.device_id,
            dict(self.options),
            dict(self.session_options),
            dict(self.run_options),
        )

    def lowering(self) -> dict[str, Any]:
        """Return what passes may see of the choice, as JSON: what is in their keys, and nothing of sessions."""
        return {"name": self.name, "precision": self.precision}

    def facts(self) -> dict[str, Any]:
        """Return what may change a pass's result, as JSON: everything but device and options of sessions."""
        return {
            "name": self.name,
            "provider": self.provider,
            "opset": self.opset,
            "ir_version": self.ir_version,
            "precision": self.precision,
            "bfloat16": self.bfloat16,
            "kernels": {name: kernel.to_json() for name, kernel in sorted(self.kernels.items())},
            "avoided": dict(sorted(self.avoided.items())),
        }
