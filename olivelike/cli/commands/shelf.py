"""`olivelike shelf`: graphs and tables of names that no run has to make."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike._text import count, size
from olivelike.cli import options as shared
from olivelike.cli.display.help_pages import Command, Group
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_found, write_line
from olivelike.errors import StoreError

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.graphs.shelf import Damage, Entry

app = typer.Typer(cls=Group, help="Show, check and extend what runs need not trace.", rich_markup_mode=None)

_Folder = Annotated[
    Path | None, option("--shelf DIR", "A shelf's folder; by default the first of $OLIVELIKE_SHELF, else the user's.")
]
_Fresh = Annotated[bool, option("--fresh", "Trace also what is there.")]


@app.command(cls=Command)
def add(
    source: Annotated[str, argument("SOURCE", "A .safetensors file, a pipeline's folder, or a hub id.")],
    components: Annotated[
        list[str] | None, option("--component NAME", "Of all networks this one; may be repeated.")
    ] = None,
    about: Annotated[str | None, option("TEXT", "What it is, for `shelf list`; by default the source's name.")] = None,
    shelf: _Folder = None,
    fresh: _Fresh = False,
    allow_pickle: shared.AllowPickle = False,
) -> None:
    """Trace a pipeline's networks once, for all of its architecture.

    No weight is read. What is on a shelf already is not traced again.
    """
    import logging

    from olivelike.engine.convert_request import networks_of
    from olivelike.graphs.shelf import ShelfFolder, own_folder
    from olivelike.graphs.shelf.filling import add_network

    folder = ShelfFolder(shelf or own_folder())
    networks = networks_of(source, components, allow_pickle=allow_pickle)
    for checkpoint in networks:
        write_line(f"{checkpoint.component}: {checkpoint.class_name}")
        said = about or Path(source).name
        add_network(folder, checkpoint, said, logging.getLogger("shelf"), fresh=fresh)
    verb = "is" if len(networks) == 1 else "are"
    write_line(f"{count(len(networks), 'network')} {verb} on the shelf {folder.path}")


@app.command("list", cls=Command)
def list_entries(shelf: _Folder = None, json: shared.Json = False) -> None:
    """List what is on the shelves: the one that ships, and your own."""
    from olivelike._table import Table
    from olivelike.graphs.shelf import VERSION, Damage

    found = list(_entries(shelf))
    values: list[Json] = [
        {"path": str(path), "damage": str(entry)} if isinstance(entry, Damage) else {"path": str(path), **asdict(entry)}
        for path, entry in found
    ]
    rows = []
    for path, entry in found:
        if isinstance(entry, Damage):
            rows.append((path.name, "damaged", "", "", ""))
        else:
            about = entry.about if entry.version == VERSION else f"{entry.about} (of version {entry.version}: not used)"
            rows.append((entry.component, entry.kind, entry.class_name, size(entry.size), about))
    write_found(values, Table(("network", "holds", "class", "size", "of"), rows, right={3}).lines(), json=json)


@app.command(cls=Command)
def verify(shelf: _Folder = None, fresh: _Fresh = False, json: shared.Json = False) -> None:
    """Check every entry against its SHA-256, or a fresh trace.

    The exit status is 3 if something is wrong. Remove a file that is; runs trace what it held.
    """
    import logging

    from olivelike.graphs.shelf import VERSION, Damage
    from olivelike.graphs.shelf.filling import differs

    found, logger = list(_entries(shelf)), logging.getLogger("shelf")
    problems = []
    for path, entry in found:
        if isinstance(entry, Damage):
            problems.append({"path": str(path), "reason": str(entry).removeprefix(f"{path} ")})
        elif fresh and entry.kind == "graph" and entry.version == VERSION and differs(entry, logger):
            problems.append({"path": str(path), "reason": "is not what the installed exporter makes"})
    verdict = count(len(problems), "problem") if problems else "all is well"
    write_found(
        {"ok": not problems, "entries": len(found), "problems": problems},
        [
            *(f"{problem['path']} {problem['reason']}" for problem in problems),
            f"checked {count(len(found), 'file')}: {verdict}",
        ],
        json=json,
    )
    if problems:
        raise typer.Exit(StoreError.exit_code)


def _entries(shelf: Path | None) -> "Iterator[tuple[Path, Entry | Damage]]":
    from olivelike.graphs.shelf import ShelfFolder, folders

    for path in folders() if shelf is None else [shelf]:
        yield from ShelfFolder(path).entries()
