"""Checks what a pass class declares: a mistake shows when the class is loaded, not in the middle of a run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from olivelike._text import did_you_mean
from olivelike.errors import PluginError
from olivelike.model import FACETS
from olivelike.pass_api import INPUTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from olivelike.workflow.passes.entry import PassEntry

_EXAMPLES = {
    "reads": "graph", "optional": "architecture", "writes": "graph", "tools": "scipy", "files": "table.csv",
    "environment": "NAME", "components": "unet",
}  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_pass_class(entry: PassEntry) -> None:
    """Check name, `reads`, `optional`, `writes`, `tools`, `files`, `environment` and `components` of a pass.

    Raises:
        PluginError: with file, line and what to do, for everything that is wrong with the class.
    """
    findings = list(_findings(entry))
    if findings:
        place = f"{entry.module_file or entry.cls.__module__}:{_class_line(entry)}"
        raise PluginError("\n".join(f"{place}: pass {entry.name!r}: {finding}" for finding in findings))


def _findings(entry: PassEntry) -> Iterator[str]:
    cls = entry.cls
    if not _NAME.fullmatch(entry.name):
        yield "its name must be lower-case letters, digits and `_`; rename the class or change `name()`"
    yield from _names("reads", cls.reads, [*FACETS, *INPUTS], "facets")
    yield from _names(
        "optional", cls.optional, [name for name in FACETS if name in cls.reads], "facets it reads"
    )
    yield from _names("writes", cls.writes, list(FACETS), "facets")
    yield from _names("tools", cls.tools, None, "distributions")
    if cls.files is not None:
        yield from _names("files", cls.files, None, "files")
    if cls.environment is not None:
        yield from _names("environment", cls.environment, None, "variables")
    if cls.components is not None:
        yield from _names("components", cls.components, None, "components")


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
