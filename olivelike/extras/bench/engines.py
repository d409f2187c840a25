"""The engines that are measured, and what each needs to be there."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from olivelike.measure.contest.engine import ONNXRUNTIME, EngineAbsent
from olivelike.runtime.sessions import providers
from olivelike.runtime.sessions.providers import Provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings

OPENVINO: Final = "openvino"
TENSORRT: Final = "tensorrt"
TORCH: Final = "torch"
TORCH_COMPILE: Final = "torch-compile"
XFORMERS: Final = "xformers"
ENGINES: Final = (ONNXRUNTIME, OPENVINO, TENSORRT, TORCH, TORCH_COMPILE, XFORMERS)
"""In the order of the table."""
TORCH_ENGINES: Final = frozenset({TORCH, TORCH_COMPILE, XFORMERS})

_ON_GPUS: Final = frozenset({TENSORRT, XFORMERS})
"""Engines for NVIDIA GPUs alone."""
_SPINNING: Final = "session.force_spinning_stop"
_TORCH_DEVICES: Final = {
    providers.CPU: "cpu",
    providers.OPENVINO: "cpu",
    "OpenVINOExecutionProvider": "cpu",
    providers.CUDA: "cuda",
    providers.TENSORRT: "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    "MIGraphXExecutionProvider": "cuda",  # What torch's builds for ROCm call it, too.
    "CoreMLExecutionProvider": "mps",
}


def usual_engines(asked: Provider) -> tuple[str, ...]:
    """Return the engines to measure where none is named: that of a folder's provider first, none for other devices."""
    fitting = {providers.OPENVINO: OPENVINO, "OpenVINOExecutionProvider": OPENVINO, providers.TENSORRT: TENSORRT}
    first = fitting.get(asked.name, ONNXRUNTIME)
    on_gpu = _TORCH_DEVICES.get(asked.name) == "cuda"
    others = (engine for engine in ENGINES if engine != first and (on_gpu or engine not in _ON_GPUS))
    return (first, *others)


def session_settings(engine: str, asked: SessionSettings) -> SessionSettings:
    """Return the settings for an engine that opens ONNX files.

    Args:
        engine: `onnxruntime`, `openvino` or `tensorrt`.
        asked: what the command line or the folder's target asks for; options of a provider go to its engine.
    """
    options = {choice.provider.name: choice for choice in asked.providers}
    on_openvino = asked.provider.name == providers.OPENVINO
    # An idle session must leave the cores to the engine whose turn it is.
    calm = {_SPINNING: "1", **asked.session_config}
    if engine == OPENVINO:
        choice = options.get(providers.OPENVINO) or ProviderChoice(providers.find_provider("openvino"))
        device = asked.device if on_openvino else None
        return SessionSettings(
            (choice,),
            device=device,
            dimensions=asked.dimensions,
            intra_threads=asked.intra_threads,
            compiled=asked.compiled,
            keep_compiled=asked.keep_compiled,
        )
    if engine == TENSORRT:
        names = (providers.TENSORRT, providers.CUDA)
        named = [options.get(name) or ProviderChoice(providers.find_provider(name)) for name in names]
        return replace(asked, providers=tuple(named), session_config=calm)
    own = [choice for choice in asked.providers if choice.provider.name != providers.OPENVINO]
    choices = tuple(own) or (ProviderChoice(providers.find_provider("cpu")),)
    device = None if on_openvino else asked.device
    return replace(asked, providers=choices, device=device, session_config=calm)


def torch_device(provider: Provider) -> str:
    """Return the device on which torch competes with a provider.

    Raises `EngineAbsent` if torch runs on nothing of that kind; on the CPU it would be no competitor.
    """
    device = _TORCH_DEVICES.get(provider.name)
    if device is None:
        raise EngineAbsent(f"torch has no device like the provider {provider.short_name}")
    return device


def require_packages(engine: str, device: str) -> None:
    """Check that what an engine is made of is installed; nothing is imported. `device` is torch's, for its engines.

    Raises `EngineAbsent` if it is not; the message says what to install.
    """
    if engine == OPENVINO and find_spec("openvino") is None:
        raise EngineAbsent("openvino is not installed (pip install 'olivelike[openvino]')")
    if engine == XFORMERS and find_spec("xformers") is None:
        raise EngineAbsent("xformers is not installed (pip install xformers)")
    if engine == XFORMERS and device != "cuda":
        raise EngineAbsent(f"xformers has kernels for CUDA alone, and torch runs on {device} here")
    if engine == TORCH_COMPILE and device == "cuda" and find_spec("triton") is None:
        raise EngineAbsent("torch.compile needs triton on CUDA (pip install triton)")
    if engine == TORCH_COMPILE and device == "cpu" and _compiler() is None:
        raise EngineAbsent("torch.compile needs a C++ compiler on the CPU, and there is none (g++, clang++, cl)")


def _compiler() -> str | None:
    named = os.environ.get("CXX")
    names = (named,) if named else ("cl",) if sys.platform == "win32" else ("g++", "clang++")
    return next((found for name in names if (found := shutil.which(name))), None)
