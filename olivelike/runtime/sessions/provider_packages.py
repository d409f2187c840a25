"""Providers that come in packages of their own: found, registered once per process, their devices listed.

Such a package has `get_library_path()` and `get_ep_name()`, as the distributions `onnxruntime-ep-*` have. Importing one
may load its vendor's libraries, so it is done when somebody asks for a provider that ONNX Runtime was not built with.

Windows ML is another place that providers come from: its package `windowsml` lists what Windows has for this machine.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SessionError
from olivelike.runtime.sessions.engine_errors import onnxruntime_errors, reason

if TYPE_CHECKING:
    from types import ModuleType

_FOREIGN: Final = re.compile(r"cannot open shared object file|error 126|image not found")
"""Messages of systems that a library lacks another one."""
_REMEDY: Final = "install the package again, in the version that this ONNX Runtime asks for"

WINDOWS_ML: Final = "WindowsML"
"""Whatever provider Windows ML has for this machine: no provider of ONNX Runtime itself."""
_REGISTERED: dict[str, Plugin] = {}
"""Plugins whose library ONNX Runtime has loaded in this process, by module."""


@dataclass(frozen=True)
class Plugin:
    """A package that brings providers."""

    module: str
    names: tuple[str, ...]
    """Names of its providers, as ONNX Runtime spells them."""
    library: str

    def __str__(self) -> str:
        return f"{self.module} {plugin_modules().get(self.module, '')}".rstrip()


def plugin_modules() -> dict[str, str]:
    """Return the modules of installed distributions `onnxruntime-ep-*`, with their versions; nothing is imported."""
    folders = [folder for place in dict.fromkeys(sys.path) for folder in Path(place).glob("onnxruntime_ep_*.dist-info")]
    return {
        file.parts[0]: distribution.version
        for distribution in map(Distribution.at, sorted(folders))
        for file in distribution.files or ()
        if file.name == "__init__.py" and len(file.parts) == 2
    }


@cache
def read_plugin(module: str) -> Plugin:
    """Import a package that brings providers. Raises `SessionError` if it is not there, is none, or is broken."""
    try:
        package = importlib.import_module(module)
    except (ImportError, OSError, RuntimeError, SyntaxError) as error:
        raise SessionError(f"plugin {module}: can't be imported: {error}; {_install(module)}") from error
    if not (callable(getattr(package, "get_library_path", None)) and callable(getattr(package, "get_ep_name", None))):
        raise SessionError(
            f"plugin {module}: is no plugin of ONNX Runtime: it has no get_library_path() and get_ep_name(); installed "
            f"plugins: {', '.join(plugin_modules()) or 'none'}"
        )
    try:
        return Plugin(module, _names(package), str(package.get_library_path()))
    except (OSError, RuntimeError) as error:
        raise SessionError(f"plugin {module}: its library is not there: {error}; {_REMEDY}") from error


def find_plugin(name: str) -> Plugin | None:
    """Return the installed plugin that brings a provider; `None` if there is none.

    Raises `SessionError` if there is none, and a plugin can't say what it brings.
    """
    broken: SessionError | None = None
    for module in plugin_modules():
        try:
            plugin = read_plugin(module)
        except SessionError as error:
            broken = error
            continue
        if name in plugin.names or name.split(".", 1)[0] in plugin.names:
            return plugin
    if broken is not None:
        raise broken
    return None


def registered_provider(name: str) -> Plugin | None:
    """Return the loaded plugin that brings a provider; `None` if there is none."""
    family = name.split(".", 1)[0]
    return next((plugin for plugin in _REGISTERED.values() if name in plugin.names or family in plugin.names), None)


def register_plugin(plugin: Plugin) -> None:
    """Have ONNX Runtime load a plugin's library, unless it has. Raises `SessionError` if it refuses it."""
    if plugin.module in _REGISTERED:
        return
    try:
        _onnxruntime().register_execution_provider_library(plugin.module, plugin.library)
    except onnxruntime_errors() as error:
        why = reason(error).rpartition("with error: ")[2]
        foreign = _FOREIGN.search(why) and plugin.library not in why
        raise SessionError(
            f"plugin {plugin}: ONNX Runtime {_onnxruntime().__version__} can't load {plugin.library}: {why}; "
            f"{'install the driver or library that is named' if foreign else _REMEDY}"
        ) from error
    _REGISTERED[plugin.module] = plugin


def provider_devices(name: str) -> list[Any]:
    """Return the devices (`OrtEpDevice`) of a provider, as registered plugins and ONNX Runtime itself list them."""
    devices = _onnxruntime().get_ep_devices()
    if name == WINDOWS_ML:
        return [device for device in devices if device.ep_name != "CPUExecutionProvider"]
    return [device for device in devices if device.ep_name == name]


def require_plugin(name: str, plugin: Plugin) -> None:
    """Register a plugin, and check that its provider has a device here. Raises `SessionError` if not."""
    register_plugin(plugin)
    if not provider_devices(name):
        there = ", ".join(sorted({device.ep_name for device in _onnxruntime().get_ep_devices()}))
        raise SessionError(
            f"{name}: plugin {plugin} is installed and loads, but finds no device here: hardware or driver is missing, "
            f"or of another vendor than it takes. Providers with a device: {there}; run with another --provider"
        )


def require_windows_ml() -> None:
    """Register what Windows ML has for this machine; what it can fetch from Windows Update is fetched.

    Raises `SessionError` if Windows ML is not installed, or nothing that it has runs here.
    """
    try:
        windows_ml = importlib.import_module("windowsml")
    except (ImportError, OSError) as error:
        raise SessionError(
            f"windowsml: Windows ML can't be used: {error}; on Windows 11 24H2 or newer: pip install "
            "'windowsml[with-ort]'; elsewhere run with another --provider"
        ) from error
    problems = []
    refusals: tuple[type[Exception], ...] = (SessionError, OSError, *onnxruntime_errors())
    with windows_ml.EpCatalog() as catalog:
        for entry in catalog.find_all_providers():
            try:
                entry.ensure_ready()
                if entry.library_path:
                    register_plugin(Plugin(entry.name, (entry.name,), entry.library_path))
            except refusals as error:
                problems.append(f"{entry.name}: {error}")
    if not provider_devices(WINDOWS_ML):
        raise SessionError(f"windowsml: no provider of Windows ML has a device here ({'; '.join(problems) or 'none'})")


def _names(package: ModuleType) -> tuple[str, ...]:
    listed = getattr(package, "get_ep_names", None)
    return tuple(map(str, listed() if callable(listed) else [package.get_ep_name()]))


def _install(module: str) -> str:
    known = plugin_modules()
    if module in known:
        return _REMEDY
    return f"install the package that has it; installed plugins: {', '.join(known) or 'none'}"


def _onnxruntime() -> Any:
    import onnxruntime

    return onnxruntime
