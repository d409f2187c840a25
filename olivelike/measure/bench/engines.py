"""The engines that are measured, what each needs to be there, and what an optimised folder was made of."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import olivelike
from olivelike._untrusted import read_json
from olivelike.errors import SessionError, UsageError
from olivelike.families import denoiser_among
from olivelike.model.families import INDEX_FILE
from olivelike.model.records.output import RECORD_FILE, OutputRecord
from olivelike.runtime.sessions import providers
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings

if TYPE_CHECKING:
    from olivelike.runtime.sessions.providers import Provider

ONNXRUNTIME: Final = "onnxruntime"
OPENVINO: Final = "openvino"
TENSORRT: Final = "tensorrt"
TORCH: Final = "torch"
TORCH_COMPILE: Final = "torch-compile"
XFORMERS: Final = "xformers"
ENGINES: Final = (ONNXRUNTIME, OPENVINO, TENSORRT, TORCH, TORCH_COMPILE, XFORMERS)
"""In the order of the table."""
TORCH_ENGINES: Final = frozenset({TORCH, TORCH_COMPILE, XFORMERS})

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


class EngineAbsent(SessionError):  # noqa: N818  (no error: the engine is left out, and the reason told)
    """An engine can't be measured on this machine or for this folder; the message says why."""


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

    Raises:
        EngineAbsent: if torch runs on nothing of that kind; on the CPU it would be no competitor.
    """
    device = _TORCH_DEVICES.get(provider.name)
    if device is None:
        raise EngineAbsent(f"torch has no device like the provider {provider.short_name}")
    return device


def require_packages(engine: str, device: str) -> None:
    """Check that what an engine is made of is installed; nothing is imported. `device` is torch's, for its engines.

    Raises:
        EngineAbsent: if it is not; the message says what to install.
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


_BUILD: Final = ("block_out_channels", "layers_per_block", "cross_attention_dim", "in_channels")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class OriginalCheckpoint:
    """Where the original is, as diffusers takes it."""

    place: str
    """A diffusers folder, a `.safetensors` file or a hub id."""
    revision: str | None = None
    """Commit of a hub id."""


def named_checkpoint(text: str) -> OriginalCheckpoint:
    """Return the checkpoint that the user names.

    Raises `UsageError` if there is nothing of that name, and it is no hub id.
    """
    path = Path(text).expanduser()
    if (path / INDEX_FILE).is_file() or path.is_file():
        return OriginalCheckpoint(str(path.absolute()))
    if path.is_dir():
        raise UsageError(f"--checkpoint: {path} has no {INDEX_FILE}, so it is no folder of diffusers")
    if _HUB_ID.fullmatch(text):
        return OriginalCheckpoint(text)
    raise UsageError(f"--checkpoint: {text} is neither a folder, nor a file, nor a hub id (OWNER/NAME)")


def recorded_checkpoint(folder: Path) -> OriginalCheckpoint:
    """Return the checkpoint that a folder's record names.

    Records of files and folders have the name alone, without the path: it is looked for where the output lies, one
    folder further up, in the current folder, and among what comes with the package. A folder of that name counts if its
    UNet is built like the output's. Raises `EngineAbsent` if it is not found.
    """
    record = OutputRecord.read(folder)
    if record is None:
        raise EngineAbsent(
            f"{folder / RECORD_FILE} does not say what the folder was made of; name the original with --checkpoint"
        )
    source = record.source
    if source.kind == "hub" and source.file is None:
        return OriginalCheckpoint(source.name, source.commit)
    name = source.file or source.name
    for place in dict.fromkeys(_places(folder)):
        if _is_original(place / name, folder):
            return OriginalCheckpoint(str(place / name))
    raise EngineAbsent(f"the folder was made of {name!r}, which is neither near it nor here; name it with --checkpoint")


def _places(folder: Path) -> Iterator[Path]:
    folder = folder.resolve()
    yield folder.parent
    yield folder.parent.parent
    yield Path.cwd()
    yield Path(olivelike.__file__).parent / "data"


def _is_original(place: Path, folder: Path) -> bool:
    if place.is_file():
        return True
    if not (place / INDEX_FILE).is_file() or (place / RECORD_FILE).exists():
        return False
    denoiser = denoiser_among([one.name for one in folder.glob("*")]) or ""
    built, wanted = (_read(path / denoiser / "config.json") for path in (place, folder))
    return all(built.get(key) == wanted[key] for key in _BUILD if key in wanted)


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if there is none that can be read."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
