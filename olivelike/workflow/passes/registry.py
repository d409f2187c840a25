"""The registry: every pass that a workflow may name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from olivelike._text import did_you_mean
from olivelike.errors import PluginError, UsageError
from olivelike.workflow.passes.discovery import built_in_passes, entry_point_passes, plugin_passes
from olivelike.workflow.passes.entry import PassEntry, RuleEntry

if TYPE_CHECKING:
    from olivelike.pass_api import Pass

FUSE = "fuse"
"""The pass that rules of plugins are added to."""


class Registry:
    """An immutable map from pass name to `PassEntry`."""

    def __init__(self, entries: Iterable[PassEntry | RuleEntry]) -> None:
        """Index `entries` by name, and add the rules among them to `fuse`.

        Raises:
            PluginError: for a name that two different classes or rules claim; the message names both places.
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

        Args:
            plugins: absolute paths of `.py` files or folders, or dotted module names (see `resolve_plugin`).

        Raises:
            PluginError: if a plugin can't be imported, holds no pass or a wrong one, or takes a used name.
        """
        entries = [*built_in_passes(), *entry_point_passes()]
        for plugin in dict.fromkeys(plugins):
            entries += plugin_passes(plugin)
        return cls(entries)

    @classmethod
    def built_in(cls) -> Registry:
        """Find the built-in passes alone."""
        return cls(built_in_passes())

    @classmethod
    def load_pass(cls, name: str, plugin: str | None, rule_plugins: Sequence[str] = ()) -> PassEntry:
        """Find one pass again, in a worker process, from a `PassEntry`'s `name`, `plugin` and `rule_plugins`.

        Raises:
            PluginError: as `load` does.
            UsageError: if the plugin no longer holds the pass.
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

        Raises:
            UsageError: for an unknown name; the message has the nearest known one.
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
