"""The registry: every pass and rule that a workflow may name, found in modules, entry points and plugins."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from olivelike._installed import entry_points, owner_of
from olivelike._text import did_you_mean
from olivelike.errors import PluginError, UsageError
from olivelike.graphs.fusion.rule import Rule
from olivelike.model import FACETS
from olivelike.pass_api import INPUTS, PASS_API, Pass
from olivelike.workflow.code.once import once
from olivelike.workflow.passes.plugin_files import explain_import, load_plugin_modules

if TYPE_CHECKING:
    from types import ModuleType

Entry: TypeAlias = "PassEntry | RuleEntry"

FUSE = "fuse"
"""The pass that rules of plugins are added to."""


class Registry:
    """An immutable map from pass name to `PassEntry`."""

    def __init__(self, entries: Iterable[PassEntry | RuleEntry]) -> None:
        """Index `entries` by name, and add the rules among them to `fuse`.

        Raises `PluginError` for a name that two different classes or rules claim; the message names both places.
        """
        self._entries: dict[str, PassEntry] = {}
        rules: list[RuleEntry] = []
        for entry in entries:
            if isinstance(entry, RuleEntry):
                rules.append(entry)
                continue
            taken = self._entries.setdefault(entry.name, entry)
            if taken.cls is not entry.cls:
                raise PluginError(
                    f"two passes are called {entry.name!r}: {_place(taken)} and {_place(entry)}; "
                    "rename one of the two classes, or leave its plugin out"
                )
        if rules:
            self._entries[FUSE] = _with_rules(self._entries[FUSE], rules)

    @classmethod
    def load(cls, plugins: Sequence[str] = ()) -> Registry:
        """Find the built-in passes, those of installed plugins, and those of `plugins`.

        `plugins` are absolute paths of `.py` files or folders, or dotted module names (see `resolve_plugin`). Raises
        `PluginError` if a plugin can't be imported, holds no pass or a wrong one, or takes a used name.
        """

        def read() -> Registry:
            entries = [*built_in_passes(), *entry_point_passes()]
            for plugin in dict.fromkeys(plugins):
                entries += plugin_passes(plugin)
            return cls(entries)

        return once(("passes", *plugins), read)

    @classmethod
    def built_in(cls) -> Registry:
        """Find the built-in passes alone."""
        return cls(built_in_passes())

    @classmethod
    def load_pass(cls, name: str, plugin: str | None, rule_plugins: Sequence[str] = ()) -> PassEntry:
        """Find one pass again, in a worker process, from a `PassEntry`'s `name`, `plugin` and `rule_plugins`.

        Raises `PluginError` as `load` does, and `UsageError` if the plugin no longer holds the pass.
        """
        entries = built_in_passes() if plugin is None else plugin_passes(plugin)
        rules = [entry for found in map(plugin_passes, rule_plugins) for entry in found]
        return cls([*entries, *(entry for entry in rules if isinstance(entry, RuleEntry))]).get(name)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._entries)

    def entries(self) -> list[PassEntry]:
        """Return all entries, in order of name."""
        return [self._entries[name] for name in self.names()]

    def get(self, name: str) -> PassEntry:
        """Return the pass called `name`.

        Raises `UsageError` for an unknown name; the message has the nearest known one.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise UsageError(f"unknown pass {name!r}; {did_you_mean(name, self.names(), 'passes')}")
        return entry


def _with_rules(entry: PassEntry, rules: Sequence[RuleEntry]) -> PassEntry:
    own = list(entry.cls.model_fields)
    known: dict[str, RuleEntry] = {}
    for added in rules:
        rule = added.rule
        taken = known.setdefault(rule.name, added)
        if rule.name in own or taken.rule.apply is not rule.apply:
            first = "the one of `fuse` itself" if rule.name in own else f"that of {taken.origin}"
            raise PluginError(
                f"two rules are called {rule.name!r}: {first} and that of {added.origin}; rename the function of one"
            )
        if rule.before not in own:
            raise PluginError(
                f"{added.origin}: rule {rule.name!r} runs before {rule.before!r}; "
                f"{did_you_mean(rule.before, own, 'rules of `fuse`')}"
            )
    fuse = cast("Any", entry.cls)  # The built-in class of that name takes rules.
    cls: type[Pass] = fuse.with_rules([added.rule for added in known.values()])
    return replace(entry, cls=cls, rules=tuple(known.values()))


def _place(entry: PassEntry) -> str:
    return f"{entry.module_file or entry.cls.__module__} ({entry.origin})"


ENTRY_POINT_GROUP = "olivelike.passes"
"""Group of the entry points by which an installed distribution offers passes and rules: modules, or one of them."""

_BUILT_IN_PACKAGE = "olivelike.passes"


@cache
def built_in_passes() -> tuple[PassEntry, ...]:
    """Return the passes of `olivelike.passes`, one module after the other."""
    modules = _package_modules(importlib.import_module(_BUILT_IN_PACKAGE))
    classes = _pass_classes(modules, within=_BUILT_IN_PACKAGE)
    return tuple(_entry(cls, "built-in", None) for cls in classes)


def entry_point_passes() -> list[Entry]:
    """Return the passes and rules that installed distributions offer.

    Raises `PluginError` if one can't be loaded; the message names its distribution.
    """
    entries: list[Entry] = []
    for point in entry_points(ENTRY_POINT_GROUP):
        owner = owner_of(point)
        entries += _module_passes(point.value, f"entry point of {owner}", f"fix or uninstall {owner}")
    return entries


def plugin_passes(plugin: str) -> list[Entry]:
    """Return the passes and rules of one plugin.

    Raises `PluginError` if it can't be imported, or holds neither, or a wrong pass.

    Args:
        plugin: absolute path of a `.py` file or folder, or a dotted module name, or `module:NAME` of one pass or rule.
    """
    location = Path(plugin)
    if not location.is_absolute():
        _check_name(plugin)
        return _module_passes(plugin, f"plugin {plugin}", "fix it, or take it out of `plugins:`")
    package, modules = load_plugin_modules(location)
    return _checked(modules, package, f"plugin {plugin}", plugin)


def _check_name(plugin: str) -> None:
    """Refuse, before it is imported, what is Python's own or a program: importing that may do anything but give passes.

    Raises `PluginError` with what to name.
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


_EXAMPLES = {
    "reads": "graph", "optional": "architecture", "writes": "graph", "tools": "scipy", "files": "table.csv",
    "environment": "NAME", "components": "unet", "requires_before": "convert", "requires_after": "float16",
    "comes_before": "float16", "conflicts": "bfloat16",
}  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class RuleEntry:
    """A rule that a plugin adds to `fuse`."""

    rule: Rule
    origin: str
    """For people, as that of a pass."""
    plugin: str
    """Reference that finds the rule again in another process."""


@dataclass(frozen=True)
class PassEntry:
    """A pass as the registry knows it."""

    name: str
    cls: type[Pass]
    module_file: Path | None
    """The file that defines the class; `None` when Python does not say."""
    origin: str
    """For people: `built-in`, `entry point of DISTRIBUTION` or `plugin PATH`."""
    plugin: str | None
    """Reference with which `Registry.load_pass` finds it again in another process; `None` for a built-in pass."""
    rules: tuple[RuleEntry, ...] = ()
    """Rules that plugins add to the pass."""

    @property
    def rule_plugins(self) -> list[str]:
        """Return the plugins that add rules to the pass, each once."""
        return list(dict.fromkeys(entry.plugin for entry in self.rules))


def check_pass_class(entry: PassEntry) -> None:
    """Check what a pass declares: a mistake shows when the class is loaded, not in the middle of a run.

    Raises `PluginError` with file, line and what to do, for everything that is wrong with the class.
    """
    findings = list(_findings(entry))
    if findings:
        place = f"{entry.module_file or entry.cls.__module__}:{_class_line(entry)}"
        raise PluginError("\n".join(f"{place}: pass {entry.name!r}: {finding}" for finding in findings))


def _findings(entry: PassEntry) -> Iterator[str]:
    cls = entry.cls
    if cls.pass_api != PASS_API:
        remedy = "update olivelike" if cls.pass_api > PASS_API else "use a newer version of the pass"
        yield f"it is for pass API {cls.pass_api}, and this olivelike has {PASS_API}; {remedy}"
        return
    if not _NAME.fullmatch(entry.name):
        yield "its name must be lower-case letters, digits and `_`; rename the class or change `name()`"
    yield from _names("reads", cls.reads, [*FACETS, *INPUTS], "facets")
    yield from _names("optional", cls.optional, [name for name in FACETS if name in cls.reads], "facets it reads")
    yield from _names("writes", cls.writes, list(FACETS), "facets")
    for attribute in ("tools", "requires_before", "requires_after", "comes_before", "conflicts"):
        yield from _names(attribute, getattr(cls, attribute), None, "")
    for attribute in ("files", "environment", "components"):
        if getattr(cls, attribute) is not None:
            yield from _names(attribute, getattr(cls, attribute), None, "")


def _names(attribute: str, value: object, valid: Collection[str] | None, kind: str) -> Iterator[str]:
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        yield f'`{attribute}` is {value!r}; make it a tuple of names, such as ("{_EXAMPLES[attribute]}",)'
        return
    for item in value:
        if valid is not None and item not in valid:
            yield f"`{attribute}` names the unknown facet {item!r}; {did_you_mean(item, valid, kind)}"


def _class_line(entry: PassEntry) -> int:
    """Return the line on which the class begins; 1 if the source can't be read."""
    import inspect

    try:
        return inspect.getsourcelines(entry.cls)[1]
    except (OSError, TypeError):
        return 1
