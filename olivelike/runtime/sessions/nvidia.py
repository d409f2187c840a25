"""CUDA: whether it can start here, and where its tensors are."""

from __future__ import annotations

import ctypes
import io
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SessionError
from olivelike.runtime.sessions.devices import NVIDIA, list_devices
from olivelike.runtime.sessions.providers import CUDA, TENSORRT

if TYPE_CHECKING:
    from olivelike.runtime.sessions.providers import Provider

_LIBRARIES: Final = {CUDA: "cuda", TENSORRT: "tensorrt"}


@dataclass(frozen=True)
class Placement:
    """Where a session's tensors are."""

    device: int | None = None
    """Number of the CUDA device; `None` for the CPU."""
    stream: Any = None
    """The torch stream that the session works on."""

    @property
    def tensor_device(self) -> str:
        """As torch names it."""
        return "cpu" if self.device is None else f"cuda:{self.device}"

    @property
    def memory(self) -> tuple[str, int]:
        """Type and number of the device, as ONNX Runtime names it."""
        return ("cpu", 0) if self.device is None else ("cuda", self.device)


def place(provider: Provider, device: int | None) -> Placement:
    """Return where tensors are: on the GPU if provider and torch both use CUDA, else on the CPU."""
    if provider.name not in NVIDIA:
        return Placement()
    import torch

    if not torch.cuda.is_available():
        return Placement()
    number = device or 0
    return Placement(number, _stream(number))


def require_nvidia(provider: Provider) -> None:
    """Check that CUDA or TensorRT can start, which ONNX Runtime would pass over with a line in its log.

    Raises:
        SessionError: without a GPU, or without a library that the provider needs.
    """
    if provider.name not in NVIDIA:
        return
    if not list_devices(provider):
        raise SessionError(
            f"{provider.short_name}: no NVIDIA GPU is found: its driver is not installed, or shows no device "
            "(CUDA_VISIBLE_DEVICES); run with another --provider"
        )
    import onnxruntime

    with redirect_stdout(io.StringIO()):  # It prints what it does not find.
        onnxruntime.preload_dlls()
    folder = Path(onnxruntime.__file__).parent / "capi"
    prefix, suffix = ("", ".dll") if sys.platform == "win32" else ("lib", ".so")
    try:
        ctypes.CDLL(str(folder / f"{prefix}onnxruntime_providers_shared{suffix}"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / f"{prefix}onnxruntime_providers_{_LIBRARIES[provider.name]}{suffix}"))
    except OSError as error:
        raise SessionError(
            f"{provider.short_name}: a library that it needs can't be loaded: {error}; install the CUDA and cuDNN "
            "that this ONNX Runtime was built for (`olivelike doctor` tries each provider)"
        ) from error


@lru_cache
def _stream(device: int) -> Any:
    """Return the stream that all sessions on a device share: recording a CUDA graph needs one of its own."""
    import torch

    return torch.cuda.Stream(device)
