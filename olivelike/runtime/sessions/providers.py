"""Execution providers: their names, the packages that bring them, and which of them are installed here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from olivelike._text import did_you_mean
from olivelike.errors import SessionError, UsageError
from olivelike.model.targets import ALIASES, TARGETS

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
DIRECTML: Final = "DmlExecutionProvider"
OPENVINO: Final = "OpenVINO"
"""The `openvino` package itself, which is no provider of ONNX Runtime."""


@dataclass(frozen=True)
class Provider:
    """An execution provider of ONNX Runtime, or the `openvino` package."""

    name: str
    """As ONNX Runtime spells it; `OpenVINO` for the package."""
    package: str
    """What to install to have it."""

    @property
    def target(self) -> str | None:
        """The target of the same provider; `None` if there is none."""
        return next((target.name for target in TARGETS.values() if target.provider == self.name), None)

    @property
    def short_name(self) -> str:
        """The name by which people call it: the target's, if there is one."""
        return self.target or self.name


_OWN_BUILD: Final = "a build of ONNX Runtime with it"
_PACKAGES: Final = {
    CPU: "onnxruntime",
    OPENVINO: "olivelike[openvino]",
    CUDA: "onnxruntime-gpu",
    TENSORRT: "onnxruntime-gpu, and TensorRT",
    "NvTensorRTRTXExecutionProvider": "onnxruntime-ep-nv-tensorrt-rtx",
    DIRECTML: "onnxruntime-directml, on Windows",
    "MIGraphXExecutionProvider": "onnxruntime-migraphx",
    "WebGpuExecutionProvider": "onnxruntime-ep-webgpu",
    "OpenVINOExecutionProvider": "onnxruntime-openvino",
    "CoreMLExecutionProvider": "onnxruntime, on macOS",
    "QNNExecutionProvider": "onnxruntime-qnn",
    "CANNExecutionProvider": "onnxruntime-cann",
    **{
        f"{name}ExecutionProvider": _OWN_BUILD
        for name in ["ACL", "Azure", "Dnnl", "Js", "Nnapi", "Rknpu", "VSINPU", "VitisAI", "WebNN", "Xnnpack"]
    },
}
_PROVIDERS: Final = {name: Provider(name, package) for name, package in _PACKAGES.items()}

_SHORT: Final[Mapping[str, str]] = {
    **{target.name: target.provider for target in TARGETS.values()},
    **{alias: TARGETS[name].provider for alias, name in ALIASES.items()},
    "dml": DIRECTML,
}


def find_provider(name: str) -> Provider:
    """Return a provider by the name of its target, or as ONNX Runtime spells it; case does not matter.

    Raises:
        UsageError: for an unknown name; the message has the nearest known ones.
    """
    known = {key.lower(): value for key, value in _SHORT.items()}
    known |= {key.lower(): key for key in _PROVIDERS if key != OPENVINO}
    found = known.get(name.lower())
    if found is not None:
        return _PROVIDERS[found]
    hint = did_you_mean(name, [*_SHORT, *_PROVIDERS], "providers")
    raise UsageError(f"unknown provider {name!r}; {hint}")


def available_providers() -> tuple[str, ...]:
    """Return the providers that are installed here, as ONNX Runtime spells them; `OpenVINO` for the package.

    Installed does not mean usable: `olivelike doctor` tries each.
    """
    import onnxruntime

    return (*onnxruntime.get_available_providers(), *([OPENVINO] if find_spec("openvino") else []))


def require_provider(provider: Provider) -> None:
    """Check that a provider is installed.

    Raises:
        SessionError: if it is not; the message says which package has it.
    """
    if provider.name == CPU or provider.name in (here := available_providers()):
        return
    raise SessionError(
        f"{provider.short_name}: {provider.name} is not installed; it comes with {provider.package} "
        f"(pip install '{provider.package.split(',')[0]}'). Installed here: {', '.join(here)}"
        if provider.package != _OWN_BUILD
        else f"{provider.name} is not in this build of ONNX Runtime. Installed here: {', '.join(here)}"
    )
