"""`olivelike cache`: look at the store, check it, and free space."""

import datetime as dt
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike._extras import needed
from olivelike._text import byte_count, count, did_you_mean, listed, moment, size
from olivelike._untrusted import Json
from olivelike.cli import options as shared
from olivelike.cli.display.help_pages import Command, command_group
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_error, write_found
from olivelike.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from olivelike.engine.execute.sharing import Backend
    from olivelike.store import Store
    from olivelike.store.store import Entry

app = command_group("Look at the store, check it, free space.")

_SHOWN_DIGITS = 12
_SHOWN_NODES = 5
_GRACE_SECONDS = 3600.0
_BESIDE = {"README.md", ".gitignore"}
"""Files that may lie in a store's folder beside its own folders."""


@app.command(cls=Command)
def ls(cache_dir: shared.StoreDir = None, json: shared.Json = False) -> None:
    """List the results, last used first."""
    from olivelike._table import Table

    store = shared.open_store(cache_dir)
    entries = sorted(store.entries(), key=lambda entry: -entry.last_used)
    known = _users(store)
    users = [known.get(entry.action.key, {"nodes": [], "workflows": []}) for entry in entries]
    rows = [
        (
            entry.action.key[:_SHOWN_DIGITS],
            _shortened(used["nodes"]) or str(entry.action.inputs["pass"]),
            _shortened(used["workflows"]),
            size(entry.bytes),
            moment(dt.datetime.fromtimestamp(entry.last_used, dt.UTC)),
            "kept" if entry.protected else "",
        )
        for entry, used in zip(entries, users, strict=True)
    ]
    write_found(
        [{**_entry_to_json(entry), **used} for entry, used in zip(entries, users, strict=True)],
        [
            *Table(("key", "node", "workflow", "size", "last used", ""), rows, right={3}).lines(),
            count(len(rows), "result"),
        ],
        json=json,
    )


@app.command("size", cls=Command)
def show_size(cache_dir: shared.StorePlace = None, json: shared.Json = False) -> None:
    """Show how much the store and compiled networks hold."""
    from olivelike._table import Table
    from olivelike.runtime.sessions.compiled import compiled_folder, size_of_compiled

    if (there := _shared(cache_dir)) is not None:
        _of_shared("size")(there, json=json)
        return
    store = shared.open_store(cache_dir)
    found = store.size()
    folders = {name: {"bytes": found.bytes[name], "files": found.files[name]} for name in found.bytes}
    rows = [(name, size(found.bytes[name]), str(found.files[name])) for name in found.bytes]
    rows.append(("all", size(found.total), str(sum(found.files.values()))))
    place = compiled_folder()
    kept, files = size_of_compiled(place)
    write_found(
        {
            "path": str(store.root),
            "total_bytes": found.total,
            "folders": folders,
            "compiled": {"path": str(place), "bytes": kept, "files": files},
        },
        [
            *Table(("folder", "bytes", "files"), rows, right={1, 2}).lines(),
            f"compiled networks, in {place}: {size(kept)} in {count(files, 'file')}",
        ],
        json=json,
    )


@app.command(cls=Command)
def verify(
    repair: Annotated[bool, option("--repair", "Move what is wrong to quarantine; the next run remakes it.")] = False,
    cache_dir: shared.StorePlace = None,
    json: shared.Json = False,
) -> None:
    """Check every byte against its hash.

    The exit status is 3 if something is wrong and not repaired.
    """
    if (there := _shared(cache_dir)) is not None:
        _of_shared("verify")(there, repair=repair, json=json)
        return
    store = shared.open_store(cache_dir, writes=repair)
    report = store.verify(repair=repair)
    problems = [{"path": str(problem.path), "reason": problem.reason} for problem in report.problems]
    checked = f"checked {count(report.actions, 'result')}, {count(report.objects, 'object')}, {size(report.bytes)}"
    verdict = "all is well" if report.ok else count(len(problems), "problem")
    if problems:
        verdict += ", moved to quarantine" if report.repaired else "; --repair moves them to quarantine"
    write_found(
        {"ok": report.ok, **asdict(report), "problems": problems},
        [*(f"{problem['path']} {problem['reason']}" for problem in problems), f"{checked}: {verdict}"],
        json=json,
    )
    if problems and not report.repaired:
        raise typer.Exit(StoreError.exit_code)


@app.command(cls=Command)
def gc(
    max_size: Annotated[str | None, option("SIZE", "The cap; by default $OLIVELIKE_CACHE_SIZE, else 20 GB.")] = None,
    older_than: Annotated[
        str | None, option("AGE", "In a shared store, also what was not used for so long: 30d.")
    ] = None,
    grace: Annotated[
        float | None,
        option(
            "SECONDS",
            "Leave objects alone that nothing needs and are younger; by default an hour, in a shared store a day.",
            min=0,
        ),
    ] = None,
    cache_dir: shared.StorePlace = None,
    json: shared.Json = False,
) -> None:
    """Free space until the store fits its cap.

    Leftovers go first, then the results that were used least recently. A shared store has no cap by default.
    """
    cap = None if max_size is None else byte_count(max_size, "--max-size")
    if (there := _shared(cache_dir)) is not None:
        _of_shared("gc")(there, cap, older_than, grace, json=json)
        return
    if older_than is not None:
        raise UsageError("--older-than is for a shared store; name its URL with --cache-dir")
    report = shared.open_store(cache_dir, writes=True).gc(cap, _GRACE_SECONDS if grace is None else grace)
    removed = f"{count(report.actions_removed, 'result')} and {count(report.objects_removed, 'object')}"
    left = f"{size(report.bytes_after)} left, the cap is {size(report.max_bytes)}"
    told = f"removed {removed}, freed {size(max(0, report.bytes_freed))}; {left}"
    write_found({**asdict(report), "bytes_freed": report.bytes_freed}, [told], json=json)


@app.command(cls=Command)
def clear(
    yes: Annotated[bool, option("--yes", "Do not ask.")] = False,
    compiled: Annotated[
        bool, option("--compiled", "Remove what engines compiled of networks, and nothing else; never asks.")
    ] = False,
    cache_dir: shared.StoreDir = None,
    json: shared.Json = False,
) -> None:
    """Remove everything: results, runs, logs, pins."""
    if compiled:
        from olivelike.runtime.sessions.compiled import clear_compiled, compiled_folder

        freed = clear_compiled(compiled_folder())
        write_found({"bytes_freed": freed}, [f"removed compiled networks, freed {size(freed)}"], json=json)
        return
    store = shared.open_store(cache_dir)
    others = {path.name for path in store.root.iterdir()} - set(store.size().bytes) - _BESIDE
    if others:
        raise UsageError(f"{store.root} is no store: it holds {min(others)}; name the store with --cache-dir")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"to remove everything in {store.root} without being asked, add --yes")
        if not typer.confirm(f"Remove everything in {store.root} ({size(store.size().total)})?", err=True):
            raise typer.Exit(1)
    freed = shared.open_store(cache_dir, writes=True).clear()
    write_found({"bytes_freed": freed}, [f"removed everything in {store.root}, freed {size(freed)}"], json=json)


@app.command(cls=Command)
@shared.with_groups
def pin(
    workflow: shared.Workflow,
    chosen: shared.WorkflowOptions,
    combination: shared.Combination = None,
    json: shared.Json = False,
) -> None:
    """Keep a workflow's results from `gc`.

    Here, or in a shared store that --cache-dir names. The pin has the workflow's name; of a `matrix` each combination
    has one. The exit status is 3 if nothing is stored.
    """
    from olivelike.engine.preparation import pin as pin_one
    from olivelike.workflow.matrix import UnnamedCombinationError

    options = shared.engine_options(chosen, combination=combination)
    try:
        pinned = [pin_one(workflow, options)]
    except UnnamedCombinationError:
        from olivelike.engine.fleet import pin_fleet

        pinned = list(pin_fleet(workflow, options).values())
    for one in pinned:
        if one.missing:
            write_error(
                f"warning: {one.name}: not stored, and so not kept: {listed(one.missing, _SHOWN_NODES)}; "
                "run the workflow, and pin again"
            )
    told = []
    for one in pinned:
        of = f"{len(one.keys)} of {len(one.keys) + len(one.missing)} results" if one.missing else ""
        told.append(f"pinned {of or count(len(one.keys), 'result')} as {one.name} in {one.store}")
    write_found([one.to_json() for one in pinned], told, json=json)


@app.command(cls=Command)
def unpin(
    name: Annotated[str, argument("NAME", "Name of the workflow that was pinned.")],
    cache_dir: shared.StorePlace = None,
    json: shared.Json = False,
) -> None:
    """Let `gc` collect a workflow's results again."""
    if (there := _shared(cache_dir)) is not None:
        _of_shared("unpin")(there, name, json=json)
        return
    store = shared.open_store(cache_dir, writes=True)
    pins = store.pins()
    if name not in pins:
        raise UsageError(f"nothing is pinned as {name!r} in {store.root}; {did_you_mean(name, list(pins), 'pins')}")
    store.unpin(name)
    write_found({"unpinned": name, "store": str(store.root)}, [f"unpinned {name}"], json=json)


def _shared(place: str | None) -> "Backend | None":
    """Return the shared store that `--cache-dir` names, or `None` if it names none; raises as `shared_backend`.

    Raises `UnreachableError` if there is no shared store, or it can't be reached.
    """
    if place is None or "://" not in place:
        return None
    from olivelike.engine.execute.sharing import shared_backend

    if (found := shared_backend(place)) is not None:
        found.require()
    return found


def _of_shared(command: str) -> "Callable[..., None]":
    """Return what an extra does of a command for a shared store."""
    do: Callable[..., None] = needed("CACHE", command, "a shared store")
    return do


def _users(store: "Store") -> dict[str, dict[str, list[str]]]:
    """Return the nodes and workflows that earlier runs had each key for, the latest first."""
    from olivelike.engine.run_result import readable_runs

    found: dict[str, dict[str, list[str]]] = {}
    for record in readable_runs(store):
        for node in record.nodes:
            if node.key is None:
                continue
            users = found.setdefault(node.key, {"nodes": [], "workflows": []})
            for known, name in ((users["nodes"], node.id), (users["workflows"], record.workflow)):
                if name not in known:
                    known.append(name)
    return found


def _shortened(names: "list[str]") -> str:
    """Return the first of several names, and how many there are more."""
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else "".join(names)


def _entry_to_json(entry: "Entry") -> Json:
    action = entry.action
    return {
        "key": action.key,
        "inputs": action.inputs,
        "outputs": action.outputs,
        "bytes": entry.bytes,
        "seconds": action.seconds,
        "created": action.created,
        "last_used": entry.last_used,
        "protected": entry.protected,
    }
