"""`olivelike cache` on a store that several machines share: exchange with it, its size, check and collection."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from olivelike.cli import options as shared
from olivelike.cli.display.help_pages import Command
from olivelike.cli.display.text import count, size
from olivelike.cli.stdout import write_error, write_found
from olivelike.errors import StoreError, UsageError

if TYPE_CHECKING:
    from olivelike.store.shared import SharedStore
    from olivelike.store.shared.exchange import Exchanged

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Url = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="The shared store, by default $OLIVELIKE_SHARED_CACHE.", show_default=False),
]
Of = Annotated[
    list[str] | None,
    typer.Option("--workflow", metavar="WORKFLOW", help="Only what this workflow needs; may be repeated."),
]


def add_exchange(app: typer.Typer) -> None:
    """Add the commands that exchange results with a shared store."""
    app.command(cls=Command)(push)
    app.command(cls=Command)(pull)
    app.command(cls=Command)(sync)


def push(url: Url = None, workflow: Of = None, cache_dir: shared.StoreDir = None, json: shared.Json = False) -> None:
    """Give a shared store the results that it lacks."""
    _exchange(url, workflow, cache_dir, json=json, gives=True)


def pull(url: Url = None, workflow: Of = None, cache_dir: shared.StoreDir = None, json: shared.Json = False) -> None:
    """Fetch the results of a shared store that are not here."""
    _exchange(url, workflow, cache_dir, json=json, fetches=True)


def sync(url: Url = None, workflow: Of = None, cache_dir: shared.StoreDir = None, json: shared.Json = False) -> None:
    """Do both, so that here and there is the same."""
    _exchange(url, workflow, cache_dir, json=json, gives=True, fetches=True)


def _exchange(
    url: str | None,
    workflows: list[str] | None,
    cache_dir: str | None,
    *,
    json: bool,
    gives: bool = False,
    fetches: bool = False,
) -> None:
    from olivelike.engine.preparation import shared_address
    from olivelike.store.shared import SharedStore
    from olivelike.store.shared.exchange import exchange

    address = shared_address(url, "URL")
    if address is None:
        raise UsageError("name the shared store, such as s3://BUCKET/FOLDER, or set $OLIVELIKE_SHARED_CACHE")
    if gives and address.read_only:
        raise UsageError(f"{address} may only be read; take `cache pull`, or another URL")
    store = shared.open_store(cache_dir, writes=True, create=fetches)
    keys = None
    if workflows:
        from olivelike.engine.needed import needed_keys

        keys = {key for one in workflows for key in needed_keys(one, store.root, address)}
    done = exchange(SharedStore(address), store, gives=gives, fetches=fetches, keys=keys)
    lines = [_told("given", done.given)] if gives else []
    lines += [_told("fetched", done.fetched)] if fetches else []
    for problem in done.problems:
        write_error(f"warning: {problem}")
    write_found({"address": str(address), **asdict(done)}, [f"{address}: {', '.join(lines)}"], json=json)


def _told(word: str, part: "Exchanged") -> str:
    speed = "" if part.bytes_per_second is None else f" at {size(part.bytes_per_second)}/s"
    left = f" ({part.there} there already)" if part.there else ""
    return f"{count(part.results, 'result')} {word}{left}, {size(part.bytes)}{speed}"


def open_shared(place: str | None) -> "SharedStore | None":
    """Return the shared store that `--cache-dir` names, or `None` if it names none.

    Raises:
        UsageError: for what is no such URL.
        UnreachableError: if there is no shared store, or it can't be reached.
    """
    if place is None or "://" not in place:
        return None
    from olivelike.store.shared import SharedStore
    from olivelike.store.shared.address import parse_address

    found = SharedStore(parse_address(place, "--cache-dir"))
    found.require()
    return found


def show_shared_size(there: "SharedStore", *, json: bool) -> None:
    """Show how much a shared store holds."""
    from olivelike.store.shared.collection import measure

    found = measure(there)
    told = f"{count(found.results, 'result')}, {count(found.objects, 'object')}, {size(found.bytes)}"
    write_found({"address": str(there.address), **asdict(found)}, [f"{there.address}: {told}"], json=json)


def verify_shared(there: "SharedStore", *, repair: bool, json: bool) -> None:
    """Read all that a shared store holds; raises `typer.Exit` if something is wrong and not repaired."""
    from olivelike.store.shared.collection import verify

    _require_writable(there, repair)
    report = verify(there, repair=repair)
    verdict = "all is well"
    if report.problems:
        verdict = count(len(report.problems), "problem")
        verdict += ", removed" if repair else "; --repair removes them"
    lines = [f"{path} {reason}" for path, reason in report.problems.items()]
    value = {"ok": not report.problems, "repaired": repair and bool(report.problems), **asdict(report)}
    told = f"checked {count(report.objects, 'object')}, {size(report.bytes)}: {verdict}"
    write_found(value, [*lines, told], json=json)
    if report.problems and not repair:
        raise typer.Exit(StoreError.exit_code)


def collect_shared(
    there: "SharedStore", cap: int | None, older_than: str | None, grace: float | None, *, json: bool
) -> None:
    """Free space in a shared store."""
    from olivelike.store.shared.collection import GRACE_SECONDS, collect

    _require_writable(there, True)
    age = None if older_than is None else _age(older_than)
    report = collect(there, max_bytes=cap, older_than=age, grace_seconds=GRACE_SECONDS if grace is None else grace)
    removed = f"{count(report.results_removed, 'result')} and {count(report.objects_removed, 'object')}"
    freed = report.bytes_before - report.bytes_after
    told = f"{there.address}: removed {removed}, freed {size(freed)}; {size(report.bytes_after)} left"
    if report.live_runs:
        told += f"; {count(report.live_runs, 'run')} at work, whose results stay"
    value: dict[str, Any] = {"address": str(there.address), **asdict(report), "bytes_freed": freed}
    write_found(value, [told], json=json)


def unpin_shared(there: "SharedStore", name: str, *, json: bool) -> None:
    """Let `gc` of a shared store collect a workflow's results again."""
    from olivelike._text import did_you_mean
    from olivelike.store.shared.pins import read_pins, remove_pin

    _require_writable(there, True)
    pins = read_pins(there.folder)
    if name not in pins:
        raise UsageError(f"nothing is pinned as {name!r} in {there.address}; {did_you_mean(name, list(pins), 'pins')}")
    remove_pin(there.folder, name)
    write_found({"unpinned": name, "store": str(there.address)}, [f"unpinned {name}"], json=json)


def _require_writable(there: "SharedStore", changes: bool) -> None:
    if changes and not there.writable:
        raise UsageError(f"{there.address} may only be read")


def _age(text: str) -> float:
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * _SECONDS[unit]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"--older-than: {text!r} is no age; write a number and s, m, h, d or w, such as 30d")
    return seconds
