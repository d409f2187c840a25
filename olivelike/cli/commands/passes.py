"""`olivelike passes`: what a workflow may name, and the beginning of a new one."""

import json as json_text
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from olivelike._text import quoted
from olivelike.cli import options as shared
from olivelike.cli.display.help_pages import Command, command_group
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_found, write_line

if TYPE_CHECKING:
    from olivelike.workflow.passes.pass_description import PassDescription, PassOption

app = command_group("List, describe and begin passes.")


@app.command("list", cls=Command)
def list_passes(plugins: shared.Plugins = None, json: shared.Json = False) -> None:
    """List every pass that a workflow may name."""
    from olivelike._table import Table
    from olivelike.workflow.passes.pass_description import describe_pass

    found = [describe_pass(entry) for entry in shared.load_registry(plugins).entries()]
    rows = [(one.name, one.origin, one.purpose) for one in found]
    write_found([one.to_json() for one in found], Table(("pass", "from", "does"), rows).lines(), json=json)


@app.command(cls=Command)
def show(
    name: Annotated[str, argument("NAME", "Name of a pass.")], plugins: shared.Plugins = None, json: shared.Json = False
) -> None:
    """Describe a pass: what it does, reads, writes, its options."""
    from olivelike.workflow.passes.pass_description import describe_pass, pass_options

    entry = shared.load_registry(plugins).get(name)
    found, options = describe_pass(entry), pass_options(entry)
    value = {**found.to_json(), "options": [dict(vars(option)) for option in options]}
    write_found(value, _lines(found, options), json=json)


@app.command(cls=Command)
def new(
    name: Annotated[str, argument("NAME", "Lower-case words joined by `_`.")],
    folder: Annotated[Path, option("DIR", "Where the two files go; made if needed.")] = Path("plugins"),
    writes: Annotated[Literal["graph", "weights"], typer.Option(help="What the pass changes.")] = "graph",
) -> None:
    """Write a new pass that works, and its test."""
    from olivelike.workflow.passes import new_pass

    module, test = new_pass(name, folder, writes)
    write_line(f"wrote {module} and {test}")
    write_line(f"name the pass in a chain, and its file or folder under `plugins:`, or try --plugin {quoted(module)}")


def _lines(found: "PassDescription", options: "tuple[PassOption, ...]") -> "Iterator[str]":
    yield f"{found.name} ({found.origin})"
    yield ""
    yield found.description
    yield ""
    facts = {name: getattr(found, name) for name in ("reads", "writes", "tools", "files", "components")}
    for title, names in {**facts, "variables": found.environment}.items():
        if names:
            yield f"{title + ':':<12}{', '.join(names)}"
    if found.file:
        yield f"{'file:':<12}{found.file}"
    yield ""
    yield "options:" if options else "no options"
    for one in options:
        default = "required" if one.required else f"default {json_text.dumps(one.default)}"
        yield f"  {one.name}: {one.type}, {default}"
        if one.help:
            yield f"      {one.help}"
