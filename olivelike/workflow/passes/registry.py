"""The registry: every pass that a workflow may name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import did_you_mean
from olivelike.errors import PluginError, UsageError
from olivelike.workflow.passes.discovery import built_in_passes, entry_point_passes, plugin_passes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from olivelike.workflow.passes.entry import PassEntry


class Registry:
    """An immutable map from pass name to `PassEntry`."""

    def __init__(self, entries: Iterable[PassEntry]) -> None:
        """Index `entries` by name.

        Raises:
            PluginError: for a name that two different classes claim; the message names both places.
        """
        self._entries: dict[str, PassEntry] = {}
        for entry in entries:
            taken = self._entries.setdefault(entry.name, entry)
            if taken.cls is not entry.cls:
                raise PluginError(
                    f"two passes are called {entry.name!r}: {_place(taken)} and {_place(entry)}; "
                    "rename one of the two classes, or leave its plugin out"
                )

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
    def load_pass(cls, name: str, plugin: str | None) -> PassEntry:
        """Find one pass again, in a worker process, from `PassEntry.name` and `PassEntry.plugin`.

        Raises:
            PluginError: as `load` does.
            UsageError: if the plugin no longer holds the pass.
        """
        return cls(built_in_passes() if plugin is None else plugin_passes(plugin)).get(name)

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


def _place(entry: PassEntry) -> str:
    return f"{entry.module_file or entry.cls.__module__} ({entry.origin})"
