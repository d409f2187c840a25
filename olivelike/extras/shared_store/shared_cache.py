"""`olivelike cache` on a store that several machines share: exchange with it, its size, check and collection."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike._text import count, did_you_mean, size as of_size
from olivelike._untrusted import Json
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_error, write_found
from olivelike.errors import StoreError, UsageError

if TYPE_CHECKING:
    from olivelike.extras.shared_store.exchange import Exchanged
    from olivelike.extras.shared_store.shared_store import SharedStore

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Url = Annotated[str | None, argument("URL", "The shared store, by default $OLIVELIKE_SHARED_CACHE.")]
Of = Annotated[list[str] | None, option("--workflow WORKFLOW", "Only what this workflow needs; may be repeated.")]


def push(url: Url = None, workflow: Of = None, cache_dir: shared.StoreDir = None, json: shared.Json = False) -> None:
    """Give a shared store the results that it lacks.

    They are signed if $OLIVELIKE_SHARED_KEY names a private key.
    """
    _exchange(url, workflow, cache_dir, gives=True, fetches=False, json=json)


def pull(url: Url = None, workflow: Of = None, cache_dir: shared.StoreDir = None, json: shared.Json = False) -> None:
    """Fetch the results of a shared store that are not here.

    If $OLIVELIKE_SHARED_SIGNERS names public keys, only what one of them signed.
    """
    _exchange(url, workflow, cache_dir, gives=False, fetches=True, json=json)


def sync(url: Url = None, workflow: Of = None, cache_dir: shared.StoreDir = None, json: shared.Json = False) -> None:
    """Do both, so that here and there is the same."""
    _exchange(url, workflow, cache_dir, gives=True, fetches=True, json=json)


def _exchange(
    url: str | None, workflows: list[str] | None, cache_dir: str | None, *, gives: bool, fetches: bool, json: bool
) -> None:
    from olivelike.engine.execute.sharing import shared_backend
    from olivelike.extras.shared_store import exchange as exchanging
    from olivelike.extras.shared_store.record_signatures import KEY, SIGNERS
    from olivelike.extras.shared_store.shared_store import SharedStore

    there = shared_backend(url, "URL")
    if not isinstance(there, SharedStore):
        raise UsageError("name the shared store, such as s3://BUCKET/FOLDER, or set $OLIVELIKE_SHARED_CACHE")
    if gives and not there.writable:
        raise UsageError(f"{there} may only be read; take `cache pull`, or another URL")
    if gives and not there.may_give:
        raise UsageError(f"${SIGNERS} asks for signed results; name your private key in ${KEY}, or take `cache pull`")
    store = shared.open_store(cache_dir, writes=True, create=fetches)
    keys = None
    if workflows:
        from olivelike.extras.shared_store.needed import needed_keys

        keys = {key for one in workflows for key in needed_keys(one, store.root, there.address)}
    done = exchanging.exchange(there, store, gives=gives, fetches=fetches, keys=keys)
    lines = [_told("given", done.given)] if gives else []
    lines += [_told("fetched", done.fetched)] if fetches else []
    for problem in done.problems:
        write_error(f"warning: {problem}")
    write_found({"address": str(there), **asdict(done)}, [f"{there}: {', '.join(lines)}"], json=json)


def _told(word: str, part: "Exchanged") -> str:
    speed = "" if part.bytes_per_second is None else f" at {of_size(part.bytes_per_second)}/s"
    left = f" ({part.there} there already)" if part.there else ""
    return f"{count(part.results, 'result')} {word}{left}, {of_size(part.bytes)}{speed}"


def size(there: "SharedStore", *, json: bool) -> None:
    """Show how much a shared store holds."""
    from olivelike.extras.shared_store.collection import measure

    found = measure(there)
    told = f"{count(found.results, 'result')}, {count(found.objects, 'object')}, {of_size(found.bytes)}"
    write_found({"address": str(there.address), **asdict(found)}, [f"{there.address}: {told}"], json=json)


def verify(there: "SharedStore", *, repair: bool, json: bool) -> None:
    """Read all that a shared store holds; raises `typer.Exit` if something is wrong and not repaired."""
    from olivelike.extras.shared_store import collection

    _require_writable(there, repair)
    report = collection.verify(there, repair=repair)
    verdict = "all is well"
    if report.problems:
        verdict = count(len(report.problems), "problem")
        verdict += ", removed" if repair else "; --repair removes them"
    lines = [f"{path} {reason}" for path, reason in report.problems.items()]
    value = {"ok": not report.problems, "repaired": repair and bool(report.problems), **asdict(report)}
    told = f"checked {count(report.objects, 'object')}, {of_size(report.bytes)}: {verdict}"
    write_found(value, [*lines, told], json=json)
    if report.problems and not repair:
        raise typer.Exit(StoreError.exit_code)


def gc(there: "SharedStore", cap: int | None, older_than: str | None, grace: float | None, *, json: bool) -> None:
    """Free space in a shared store."""
    from olivelike.extras.shared_store.collection import GRACE_SECONDS, collect

    _require_writable(there, True)
    age = None if older_than is None else _age(older_than)
    report = collect(there, max_bytes=cap, older_than=age, grace_seconds=GRACE_SECONDS if grace is None else grace)
    removed = f"{count(report.results_removed, 'result')} and {count(report.objects_removed, 'object')}"
    freed = report.bytes_before - report.bytes_after
    told = f"{there.address}: removed {removed}, freed {of_size(freed)}; {of_size(report.bytes_after)} left"
    if report.live_runs:
        told += f"; {count(report.live_runs, 'run')} at work, whose results stay"
    value: Json = {"address": str(there.address), **asdict(report), "bytes_freed": freed}
    write_found(value, [told], json=json)


def unpin(there: "SharedStore", name: str, *, json: bool) -> None:
    """Let `gc` of a shared store collect a workflow's results again."""
    from olivelike.extras.shared_store.pins import read_pins, remove_pin

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
