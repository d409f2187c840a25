"""`olivelike passes`: what a workflow may name, and the beginning of a new one."""

import inspect
import json as json_text
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from olivelike.cli import options as shared
from olivelike.cli.display.help_pages import Command, Group
from olivelike.cli.stdout import write_json, write_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.workflow.passes import PassEntry, Registry

app = typer.Typer(
    cls=Group,
    help="List, describe and begin passes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("list", cls=Command)
def list_passes(plugins: shared.Plugins = None, json: shared.Json = False) -> None:
    """List every pass that a workflow may name."""
    from olivelike.cli.display.text import table

    entries = load_registry(plugins).entries()
    if json:
        write_json([_summary(entry) for entry in entries])
        return
    rows = [(entry.name, entry.origin, _purpose(entry)) for entry in entries]
    for line in table(("pass", "from", "does"), rows):
        write_line(line)


@app.command(cls=Command)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a pass.", show_default=False)],
    plugins: shared.Plugins = None,
    json: shared.Json = False,
) -> None:
    """Describe a pass: what it does, reads, writes, its options."""
    entry = load_registry(plugins).get(name)
    if json:
        write_json(described(entry))
        return
    for line in _description(entry):
        write_line(line)


@app.command(cls=Command)
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Lower-case words joined by `_`.", show_default=False)
    ],
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where the two files go; made if needed.")
    ] = Path("plugins"),
    writes: Annotated[
        Literal["graph", "weights"], typer.Option("--writes", help="What the pass changes.")
    ] = "graph",
) -> None:
    """Write a new pass that works, and its test."""
    from olivelike.workflow.passes import new_pass

    module, test = new_pass(name, folder, writes)
    write_line(f"wrote {module} and {test}")
    write_line(f"name the pass in a chain, and its file or folder under `plugins:`, or try --plugin {module}")


def load_registry(plugins: list[str] | None) -> "Registry":
    """Return the registry with plugins that were named relative to the current folder."""
    from olivelike.workflow.passes import Registry, resolve_plugin

    return Registry.load([resolve_plugin(text, Path.cwd()) for text in plugins or ()])


def described(entry: "PassEntry") -> dict[str, Any]:
    """Return all that is said of a pass, as JSON values."""
    return {**_summary(entry), "options": _options(entry)}


def _purpose(entry: "PassEntry") -> str:
    return inspect.cleandoc(entry.cls.__doc__ or "").partition("\n")[0]


def _summary(entry: "PassEntry") -> dict[str, Any]:
    from olivelike.workflow.code.code_digest import code_digest

    cls = entry.cls
    return {
        "name": entry.name,
        "purpose": _purpose(entry),
        "description": inspect.cleandoc(cls.__doc__ or ""),
        "origin": entry.origin,
        "file": str(entry.module_file) if entry.module_file else None,
        "reads": list(cls.reads),
        "writes": list(cls.writes),
        "tools": sorted({*cls.tools, *code_digest(entry).tools}),
        "files": None if cls.files is None else list(cls.files),
        "environment": None if cls.environment is None else list(cls.environment),
        "components": None if cls.components is None else list(cls.components),
    }


def _options(entry: "PassEntry") -> list[dict[str, Any]]:
    """Return each option with its type, default and help."""
    schema = entry.cls.model_json_schema()
    found = []
    for name, field in entry.cls.model_fields.items():
        described = schema["properties"].get(name, {})
        found.append(
            {
                "name": name,
                "type": _type_name(field.annotation),
                "required": field.is_required(),
                "default": described.get("default"),
                "help": " ".join((field.description or "").split()),
            }
        )
    return found


def _type_name(annotation: Any) -> str:
    """Return a type as people read it, such as `'fp32' | 'fp16' | none`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "none"
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if origin in {Union, UnionType}:
        return " | ".join(map(_type_name, arguments))
    if isinstance(annotation, type) and not arguments:
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _description(entry: "PassEntry") -> "Iterator[str]":
    facts = _summary(entry)
    yield f"{entry.name} ({entry.origin})"
    yield ""
    yield facts["description"]
    yield ""
    for title in ("reads", "writes", "tools", "files", "components"):
        if facts[title]:
            yield f"{title + ':':<12}{', '.join(facts[title])}"
    if facts["environment"]:
        yield f"{'variables:':<12}{', '.join(facts['environment'])}"
    if entry.module_file:
        yield f"{'file:':<12}{entry.module_file}"
    options = _options(entry)
    yield ""
    yield "options:" if options else "no options"
    for option in options:
        default = "required" if option["required"] else f"default {json_text.dumps(option['default'])}"
        yield f"  {option['name']}: {option['type']}, {default}"
        if option["help"]:
            yield f"      {option['help']}"
