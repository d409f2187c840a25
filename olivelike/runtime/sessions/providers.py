"""Execution providers: their names, the packages that bring them, and what is installed here and reads how much."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

from olivelike._installed import installed_version
from olivelike._text import did_you_mean
from olivelike._untrusted import Json
from olivelike.errors import SessionError, UsageError
from olivelike.model.targets import ALIASES, TARGETS
from olivelike.runtime.sessions import provider_packages
from olivelike.runtime.sessions.engine_errors import onnxruntime_errors

CPU: Final = "CPUExecutionProvider"
PLUGIN: Final = "plugin:"
"""Beginning of the names of providers that we do not know."""
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
DIRECTML: Final = "DmlExecutionProvider"
OPENVINO: Final = "OpenVINO"
"""The `openvino` package itself, which is no provider of ONNX Runtime."""
WINDOWS_ML: Final = provider_packages.WINDOWS_ML


@dataclass(frozen=True)
class Provider:
    """An execution provider of ONNX Runtime, or the `openvino` package."""

    name: str
    """As ONNX Runtime spells it; `OpenVINO` for the package."""
    package: str
    """Package to install to have it."""
    plugin: str = ""
    """The module that brings it, where the user named one."""

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
    "NvTensorRTRTXExecutionProvider": "olivelike[tensorrt-rtx]",
    DIRECTML: "onnxruntime-directml, on Windows",
    "MIGraphXExecutionProvider": "onnxruntime-migraphx",
    "WebGpuExecutionProvider": "olivelike[webgpu]",
    "OpenVINOExecutionProvider": "olivelike[openvino-ep]",
    WINDOWS_ML: "windowsml[with-ort], on Windows",
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

    `plugin:NAME` is a provider, or the first one of a module, that an installed plugin brings. Raises `UsageError` for
    an unknown name; the message has the nearest known ones. Raises `SessionError` for a plugin that is not there, is
    none, or is broken. Raises `PluginError` for the target of a plugin that can't be loaded.
    """
    if name.startswith(PLUGIN):
        return _plugin_provider(name.removeprefix(PLUGIN))
    known = {key.lower(): value for key, value in _SHORT.items()}
    known |= {key.lower(): key for key in _PROVIDERS if key != OPENVINO}
    found = known.get(name.lower())
    if found is not None:
        return _PROVIDERS[found]
    from olivelike.model.plugin_targets import find_plugin_target, target_names

    if (offered := find_plugin_target(name.lower())) is not None:
        brought = offered.target.provider
        return _PROVIDERS.get(brought) or Provider(brought, offered.package)
    hint = did_you_mean(name, [*target_names(), *ALIASES, *_PROVIDERS], "providers")
    raise UsageError(f"unknown provider {name!r}; {hint}, and plugin:NAME for what an installed plugin brings")


def _plugin_provider(name: str) -> Provider:
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        raise UsageError(f"plugin:{name}: name a provider or a module, plugin:onnxruntime_ep_webgpu for example")
    plugin = None if find_spec(name.partition(".")[0]) else provider_packages.find_plugin(name)
    if plugin is not None:
        return Provider(name, plugin.module, plugin.module)
    plugin = provider_packages.read_plugin(name)
    return Provider(plugin.names[0], name, name)


def available_providers() -> tuple[str, ...]:
    """Return the providers that are installed here, as ONNX Runtime spells them; `OpenVINO` for the package.

    Those of a plugin are among them once it was asked for; installed does not mean usable: `olivelike doctor` tries
    each.
    """
    import onnxruntime

    return (*onnxruntime.get_available_providers(), *([OPENVINO] if find_spec("openvino") else []))


def require_provider(provider: Provider) -> None:
    """Check that a provider is installed; a plugin is registered with ONNX Runtime, if it has not been yet.

    Raises `SessionError` if it is not, and the message says which package has it, or if a plugin can't be loaded or
    finds no device.
    """
    if provider.name == WINDOWS_ML:
        provider_packages.require_windows_ml()
        return
    plugin = (
        provider_packages.read_plugin(provider.plugin)
        if provider.plugin
        else provider_packages.registered_provider(provider.name)
    )
    if plugin is None and (provider.name == CPU or provider.name in available_providers()):
        return
    plugin = plugin or provider_packages.find_plugin(provider.name)
    if plugin is not None:
        provider_packages.require_plugin(provider.name, plugin)
        return
    here = ", ".join([*available_providers(), *(PLUGIN + module for module in provider_packages.plugin_modules())])
    raise SessionError(
        f"{provider.short_name}: {provider.name} is not installed; it comes with {provider.package} "
        f"(pip install '{provider.package.split(',')[0]}'). Installed here: {here}"
        if provider.package != _OWN_BUILD
        else f"{provider.name} is not in this build of ONNX Runtime. Installed here: {here}"
    )


_FATAL = 4
_SEARCHED_UP_TO = 256


@dataclass(frozen=True)
class RuntimeOffer:
    """One installed engine."""

    name: str
    version: str
    opset: int | None
    """Highest opset of `ai.onnx` that it reads; `None` where it goes by operators."""
    ir_version: int | None
    """Highest IR version that it reads; `None` where it does not look."""
    providers: tuple[str, ...]
    """Execution providers, or devices of OpenVINO."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        limits = [
            f"{what} up to {highest}"
            for what, highest in (("opset", self.opset), ("IR version", self.ir_version))
            if highest is not None
        ]
        return f"{self.name} {self.version}: {', '.join([*limits, *self.providers])}"


def installed_offers() -> tuple[RuntimeOffer, ...]:
    """Return what ONNX Runtime offers here, and OpenVINO if it is installed."""
    openvino = openvino_offer()
    return (onnxruntime_offer(), *([openvino] if openvino else []))


@lru_cache
def onnxruntime_offer() -> RuntimeOffer:
    """Return what ONNX Runtime offers, found by opening models of one node: its own tables are not public."""
    import onnxruntime

    return RuntimeOffer(
        "ONNX Runtime",
        onnxruntime.__version__,
        _highest(lambda opset: _opens(opset, 8)),
        _highest(lambda ir_version: _opens(17, ir_version)),
        tuple(onnxruntime.get_available_providers()),
    )


@lru_cache
def openvino_offer() -> RuntimeOffer | None:
    """Return what OpenVINO offers; `None` if it is not installed."""
    found = installed_version("openvino")
    if found is None:
        return None
    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    return RuntimeOffer("OpenVINO", found, None, None, tuple(openvino.Core().available_devices))


def _highest(opens: Callable[[int], bool]) -> int:
    """Return the last number that `opens`, given that 8 does and that there are no gaps."""
    low, high = 8, _SEARCHED_UP_TO
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if opens(middle) else (low, middle)
    return low


def _opens(opset: int, ir_version: int) -> bool:
    import onnxruntime

    from olivelike.model.onnx_messages import GraphProto, ModelProto, TensorProto, make_node, make_value

    taken, made = (make_value(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = GraphProto(name="probe", node=[make_node("Abs", "x", "y")], input=[taken], output=[made])
    model = ModelProto(ir_version=ir_version, opset_import=[{"version": opset}], graph=graph)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except onnxruntime_errors():
        return False
    return True
