"""One known pass or rule: its name, its class, where it came from, and whether what it declares is right."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._text import did_you_mean
from olivelike.errors import PluginError
from olivelike.model import FACETS
from olivelike.pass_api import INPUTS, PASS_API

if TYPE_CHECKING:
    from olivelike.pass_api import Pass, Rule

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
    """What finds the rule again in another process."""


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
    """What `Registry.load_pass` needs to find it again in another process; `None` for a built-in pass."""
    rules: tuple[RuleEntry, ...] = ()
    """Those that plugins add to the pass."""

    @property
    def rule_plugins(self) -> list[str]:
        """Return the plugins that add rules to the pass, each once."""
        return list(dict.fromkeys(entry.plugin for entry in self.rules))


def check_pass_class(entry: PassEntry) -> None:
    """Check what a pass declares: a mistake shows when the class is loaded, not in the middle of a run.

    Raises:
        PluginError: with file, line and what to do, for everything that is wrong with the class.
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
