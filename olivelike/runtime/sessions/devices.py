"""Devices of a provider, by number and name; whether CUDA can start here, and what its memory is called."""

from __future__ import annotations

import ctypes
import io
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from olivelike.errors import SessionError
from olivelike.runtime.sessions.provider_packages import provider_devices
from olivelike.runtime.sessions.providers import CPU, CUDA, DIRECTML, TENSORRT, WINDOWS_ML, Provider

NVIDIA: Final = frozenset({CUDA, TENSORRT})
_LIBRARIES: Final = {CUDA: "cuda", TENSORRT: "tensorrt"}
_NAME_BYTES: Final = 256
_LOADING: Final = threading.Lock()
_EXACT_BYTES: Final = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})


@dataclass(frozen=True)
class Device:
    """One device."""

    number: int
    name: str


def list_devices(provider: Provider) -> tuple[Device, ...]:
    """Return the devices of a provider of ONNX Runtime; none where they can't be listed."""
    if provider.name == CPU:
        return (Device(0, "CPU"),)
    return tuple(_nvidia_devices() if provider.name in NVIDIA else _described_devices(provider.name))


def find_device(asked: int | str | None, provider: Provider, devices: Sequence[Device] | None = None) -> int | None:
    """Return the number of a device.

    Raises `SessionError` if there is no such device, or several have the name; the message lists what there is.

    Args:
        asked: A number, a part of a name in any case, or `None` for what the provider's options say.
        devices: What there is to choose from; by default what `list_devices` finds.
    """
    if asked is None:
        return None
    known = list_devices(provider) if devices is None else tuple(devices)
    listed = ", ".join(f"{device.number} ({device.name})" for device in known)
    if isinstance(asked, int):
        if known and all(device.number != asked for device in known):
            raise SessionError(f"{provider.short_name} has no device {asked}; devices: {listed}")
        return asked
    if not known:
        raise SessionError(
            f"{provider.short_name}: devices can't be listed by name here; give the number of the device in place "
            f"of {asked!r}"
        )
    found = [device for device in known if asked.lower() in device.name.lower()]
    exact = [device for device in found if device.name.lower() == asked.lower()]
    if len(exact or found) == 1:
        return (exact or found)[0].number
    many = "several devices" if found else "no device"
    raise SessionError(f"{provider.short_name} has {many} of the name {asked!r}; devices: {listed}")


def _nvidia_devices() -> Iterator[Device]:
    """Yield what the driver lists, numbered as CUDA numbers them: `CUDA_VISIBLE_DEVICES` counts."""
    driver = _nvidia_driver()
    count, handle = ctypes.c_int(), ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)):
        return
    for number in range(count.value):
        name = ctypes.create_string_buffer(_NAME_BYTES)
        if not driver.cuDeviceGet(ctypes.byref(handle), number):
            driver.cuDeviceGetName(name, _NAME_BYTES, handle)
        yield Device(number, name.value.decode(errors="replace"))


def _nvidia_driver() -> Any:
    """Return NVIDIA's driver, ready to be asked; `None` without one."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    return None if driver.cuInit(0) else driver


def total_memory(provider: Provider, asked: int | str | None) -> int | None:
    """Return the bytes that a device of NVIDIA's has in all; `None` for other providers, and where nothing tells it.

    Raises `SessionError` if there is no such device.
    """
    if provider.name not in NVIDIA or (driver := _nvidia_driver()) is None:
        return None
    handle, found = ctypes.c_int(), ctypes.c_size_t()
    if driver.cuDeviceGet(ctypes.byref(handle), find_device(asked, provider) or 0):
        return None
    return None if driver.cuDeviceTotalMem_v2(ctypes.byref(found), handle) else found.value


def _described_devices(provider: str) -> Iterator[Device]:
    """Yield what ONNX Runtime itself lists for a provider; DirectML's number is that of the graphics adapter."""
    for position, device in enumerate(provider_devices(provider)):
        hardware = device.device
        metadata: Mapping[str, str] = hardware.metadata
        adapter = metadata.get("DxgiAdapterNumber", "") if provider == DIRECTML else ""
        number = int(adapter) if adapter.isdecimal() else position
        described = metadata.get("Description") or device.ep_metadata.get("FULL_DEVICE_NAME", "")
        name = f"{described or hardware.vendor} {hardware.type.name}"
        yield Device(number, f"{device.ep_name} {name}" if provider == WINDOWS_ML else name)


Memory = tuple[str, int]
"""Type and number of a device, as ONNX Runtime names its memory."""


def device_memory(provider: Provider, device: int | None) -> Memory | None:
    """Return the memory of a provider's device, if its arrays can be put there by name: CUDA's; `None` for others."""
    return ("cuda", device or 0) if provider.name in NVIDIA else None


def load_nvidia_libraries() -> None:
    """Load CUDA and cuDNN from their packages, once in a process and without a word.

    What is written meanwhile by other threads is lost: whoever is about to begin some calls it before.
    """
    with _LOADING:
        _load_once()


@cache
def _load_once() -> None:
    import onnxruntime

    with redirect_stdout(io.StringIO()):  # It prints what it does not find.
        onnxruntime.preload_dlls()


def require_nvidia(provider: Provider) -> None:
    """Check that CUDA or TensorRT can start, which ONNX Runtime would pass over with a line in its log.

    Raises `SessionError` without a GPU, or without a library that the provider needs.
    """
    if provider.name not in NVIDIA:
        return
    if not list_devices(provider):
        raise SessionError(
            f"{provider.short_name}: no NVIDIA GPU is found: its driver is not installed, or shows no device "
            "(CUDA_VISIBLE_DEVICES); run with another --provider"
        )
    import onnxruntime

    load_nvidia_libraries()
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


def adds_bytes_exactly() -> bool:
    """Say whether products of uint8 by int8 are right here; yes where the system does not tell, as on Windows.

    ONNX Runtime adds pairs of them in 16 bits on x86 processors without VNNI, which overflow.
    """
    machine, *features = processor()
    return machine != "x86_64" or "sse2" not in features or not _EXACT_BYTES.isdisjoint(features)


def processor() -> list[str]:
    """Return what tells the CPU from others, for which networks are compiled otherwise: its kind and its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    features = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return [platform.machine(), *next(features, "").split()]
