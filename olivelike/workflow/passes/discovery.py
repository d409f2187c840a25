"""Finds passes and rules in modules: the package `olivelike.passes`, entry points, and plugins of a workflow."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import PluginError
from olivelike.graphs.fusion.rule import Rule
from olivelike.pass_api import Pass
from olivelike.workflow.passes.entry import PassEntry, RuleEntry, check_pass_class
from olivelike.workflow.passes.plugin_files import explain_import, load_plugin_modules

if TYPE_CHECKING:
    from types import ModuleType

    Entry = PassEntry | RuleEntry

ENTRY_POINT_GROUP = "olivelike.passes"
"""Group of the entry points by which an installed distribution offers passes and rules: modules, or one of them."""

_BUILT_IN_PACKAGE = "olivelike.passes"


def built_in_passes() -> list[PassEntry]:
    """Return the passes of `olivelike.passes`, one module after the other."""
    modules = _package_modules(importlib.import_module(_BUILT_IN_PACKAGE))
    classes = _pass_classes(modules, within=_BUILT_IN_PACKAGE)
    return [_entry(cls, "built-in", None) for cls in classes]


def entry_point_passes() -> list[Entry]:
    """Return the passes and rules that installed distributions offer.

    Raises:
        PluginError: if one can't be loaded; the message names its distribution.
    """
    from importlib.metadata import entry_points

    entries: list[Entry] = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        owner = f"distribution {point.dist.name}" if point.dist else f"entry point {point.name}"
        remedy = f"fix or uninstall {owner}"
        entries += _module_passes(point.value, f"entry point of {owner}", remedy)
    return entries


def plugin_passes(plugin: str) -> list[Entry]:
    """Return the passes and rules of one plugin.

    Args:
        plugin: absolute path of a `.py` file or folder, or a dotted module name, or `module:NAME` of one pass or rule.

    Raises:
        PluginError: if it can't be imported, or holds neither, or a wrong pass.
    """
    location = Path(plugin)
    if not location.is_absolute():
        _check_name(plugin)
        return _module_passes(plugin, f"plugin {plugin}", "fix it, or take it out of `plugins:`")
    package, modules = load_plugin_modules(location)
    return _checked(modules, package, f"plugin {plugin}", plugin)


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


def _module_passes(reference: str, origin: str, remedy: str) -> list[Entry]:
    """Return what a module on the import path has, or its package, or the pass or rule in it that is named."""
    name, _, attribute = reference.partition(":")
    with explain_import(f"{origin} ({reference})", folder=None, remedy=remedy):
        module = importlib.import_module(name)
        modules = [module] if attribute else _package_modules(module)
    if not attribute:
        # A module may re-export passes from the rest of its own distribution.
        return _checked(modules, name.partition(".")[0], origin, reference)
    found = getattr(module, attribute, None)
    if isinstance(found, Rule):
        return [RuleEntry(found, origin, reference)]
    if isinstance(found, type) and issubclass(found, Pass):
        return [_entry(found, origin, reference)]
    raise PluginError(
        f"{module.__file__ or name}: {origin} names {attribute!r}, which is not a class derived from "
        f"olivelike.pass_api.Pass; {remedy}"
    )


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
                and value.chosen_by is None
                and f"{value.__module__}.".startswith(f"{within}.")
            ):
                found[value] = None
    return list(found)


def _checked(modules: Sequence[ModuleType], within: str, origin: str, plugin: str) -> list[Entry]:
    """Return the passes and rules in the modules that were defined in the package `within`."""
    rules = {
        id(value): RuleEntry(value, origin, plugin)
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Rule) and f"{value.apply.__module__}.".startswith(f"{within}.")
    }
    found: list[Entry] = [_entry(cls, origin, plugin) for cls in _pass_classes(modules, within)]
    found += rules.values()
    if not found:
        places = ", ".join(str(module.__file__) for module in modules if getattr(module, "__file__", None))
        raise PluginError(
            f"{origin} holds no pass (looked into {places or plugin}); "
            "define a class derived from olivelike.pass_api.Pass that has a method `run`"
        )
    return found


def _entry(cls: type[Pass], origin: str, plugin: str | None) -> PassEntry:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    entry = PassEntry(cls.name(), cls, Path(file) if file else None, origin, plugin)
    check_pass_class(entry)
    return entry
