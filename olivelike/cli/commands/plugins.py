"""`olivelike plugins`: installed distributions with passes, targets and extras."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_found, write_lines
from olivelike.errors import UsageError

if TYPE_CHECKING:
    from olivelike.workflow.installed_plugins import InstalledPlugin


def plugins(
    name: Annotated[str | None, argument("NAME", "Show this one, and what its metadata lacks.")] = None,
    markdown: Annotated[bool, option("--markdown", "Write a table for a catalogue page.")] = False,
    json: shared.Json = False,
) -> None:
    """List installed plugins with the passes, targets and extras that they give, by their metadata."""
    from olivelike._table import Table
    from olivelike.workflow.installed_plugins import catalogue, find_plugin, installed_plugins

    if json and markdown:
        raise UsageError("--markdown is for pages, --json for programs; take one")
    found = installed_plugins() if name is None else [find_plugin(name)]
    if markdown:
        write_lines(catalogue(found))
        return
    if name is not None:
        write_found(found[0].to_json(), _lines(found[0]), json=json)
        return
    rows = [(one.name, one.version, _given(one), one.summary) for one in found]
    lines = Table(("plugin", "version", "gives", "does"), rows).lines() if rows else ["no plugins are installed"]
    write_found([one.to_json() for one in found], lines, json=json)


def _given(one: "InstalledPlugin") -> str:
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in one.gives.items())


def _lines(one: "InstalledPlugin") -> "Iterator[str]":
    yield f"{one.name} {one.version}"
    yield one.summary
    yield ""
    facts = {
        "gives": _given(one), "license": one.license, "author": one.author, "keywords": ", ".join(one.keywords),
        "needs": ", ".join(one.needs), **one.urls,
    }  # fmt: skip
    width = max(map(len, facts)) + 2
    for title, text in facts.items():
        if text:
            yield f"{title + ':':<{width}}{text}"
    if lacks := [*one.lacks()]:
        yield ""
        yield f"a catalogue would want: {', '.join(lacks)}"
