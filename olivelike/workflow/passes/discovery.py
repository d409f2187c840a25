"""Finds passes in modules: the package `olivelike.passes`, entry points, and plugins of a workflow."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import PluginError
from olivelike.pass_api import Pass
from olivelike.workflow.passes.entry import PassEntry
from olivelike.workflow.passes.pass_check import check_pass_class
from olivelike.workflow.passes.plugin_files import load_plugin_modules
from olivelike.workflow.passes.plugin_import import explain_import

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

ENTRY_POINT_GROUP = "olivelike.passes"
"""Group of the entry points by which an installed distribution offers passes: modules or classes."""

_BUILT_IN_PACKAGE = "olivelike.passes"


def built_in_passes() -> list[PassEntry]:
    """Return the passes of `olivelike.passes`, one module after the other."""
    modules = _package_modules(importlib.import_module(_BUILT_IN_PACKAGE))
    classes = _pass_classes(modules, within=_BUILT_IN_PACKAGE)
    return [_entry(cls, "built-in", None) for cls in classes]


def entry_point_passes() -> list[PassEntry]:
    """Return the passes that installed distributions offer.

    Raises:
        PluginError: if one can't be loaded; the message names its distribution.
    """
    from importlib.metadata import entry_points

    entries: list[PassEntry] = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        owner = f"distribution {point.dist.name}" if point.dist else f"entry point {point.name}"
        remedy = f"fix or uninstall {owner}"
        entries += _module_passes(point.value, f"entry point of {owner}", remedy)
    return entries


def plugin_passes(plugin: str) -> list[PassEntry]:
    """Return the passes of one plugin.

    Args:
        plugin: absolute path of a `.py` file or folder, or a dotted module name, or `module:Class`.

    Raises:
        PluginError: if it can't be imported, or holds no pass, or a wrong one.
    """
    location = Path(plugin)
    if not location.is_absolute():
        _check_name(plugin)
        return _module_passes(plugin, f"plugin {plugin}", "fix it, or take it out of `plugins:`")
    package, modules = load_plugin_modules(location)
    classes = _pass_classes(modules, within=package)
    return _checked(classes, modules, f"plugin {plugin}", plugin)


def _check_name(plugin: str) -> None:
    """Refuse, before it is imported, what is Python's own or a program: importing that may do anything but give passes.

    Raises:
        PluginError: with what to name.
    """
    parts = plugin.partition(":")[0].split(".")
    if "__main__" in parts or parts[0] in sys.stdlib_module_names or not all(map(str.isidentifier, parts)):
        raise PluginError(
            f"plugin {plugin!r} is no module that may hold passes; name an installed one, or a file with its path"
        )


def _module_passes(reference: str, origin: str, remedy: str) -> list[PassEntry]:
    """Return the passes of a module on the import path, of its package, or of one class in it."""
    name, _, attribute = reference.partition(":")
    with explain_import(f"{origin} ({reference})", folder=None, remedy=remedy):
        module = importlib.import_module(name)
        modules = [module] if attribute else _package_modules(module)
    if not attribute:
        # A module may re-export passes from the rest of its own distribution.
        classes = _pass_classes(modules, within=name.partition(".")[0])
        return _checked(classes, modules, origin, reference)
    cls = getattr(module, attribute, None)
    if not (isinstance(cls, type) and issubclass(cls, Pass)):
        raise PluginError(
            f"{module.__file__ or name}: {origin} names {attribute!r}, which is not a class derived from "
            f"olivelike.pass_api.Pass; {remedy}"
        )
    return _checked([cls], modules, origin, reference)


def _package_modules(module: ModuleType) -> list[ModuleType]:
    """Return the module; of a package also the public modules directly in it, tests left out."""
    names = [info.name for info in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    public = [name for name in names if not name.startswith(("_", "test_"))]
    return [module, *(importlib.import_module(f"{module.__name__}.{name}") for name in public)]


def _pass_classes(modules: Iterable[ModuleType], within: str) -> list[type[Pass]]:
    """Return the concrete passes in the modules that were defined in the package `within`."""
    found: dict[type[Pass], None] = {}
    for module in modules:
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Pass)
                and not value.__abstractmethods__
                and f"{value.__module__}.".startswith(f"{within}.")
            ):
                found[value] = None
    return list(found)


def _checked(
    classes: Sequence[type[Pass]], modules: Sequence[ModuleType], origin: str, plugin: str
) -> list[PassEntry]:
    if not classes:
        places = ", ".join(str(module.__file__) for module in modules if getattr(module, "__file__", None))
        raise PluginError(
            f"{origin} holds no pass (looked into {places or plugin}); "
            "define a class derived from olivelike.pass_api.Pass that has a method `run`"
        )
    return [_entry(cls, origin, plugin) for cls in classes]


def _entry(cls: type[Pass], origin: str, plugin: str | None) -> PassEntry:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    entry = PassEntry(cls.name(), cls, Path(file) if file else None, origin, plugin)
    check_pass_class(entry)
    return entry
