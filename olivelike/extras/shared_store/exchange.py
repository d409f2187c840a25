"""All of a store's results given to a shared one, or fetched from it."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike._text import count
from olivelike.errors import DamagedError
from olivelike.extras.shared_store.leases import HeldLease
from olivelike.extras.shared_store.record_signatures import SIGNERS
from olivelike.store.runs import new_run_id

if TYPE_CHECKING:
    from olivelike.extras.shared_store.shared_store import SharedStore, Traffic
    from olivelike.store import Action, Store

_AT_ONCE: Final = 4


@dataclass(frozen=True)
class Exchanged:
    """Results and bytes that went in one direction."""

    results: int
    there: int
    """Results that were there already."""
    bytes: int
    bytes_per_second: float | None


@dataclass(frozen=True)
class Exchange:
    """Result of an exchange."""

    given: Exchanged
    fetched: Exchanged
    problems: list[str]
    """Lines on what could not be exchanged, and why; it was left."""


def exchange(
    shared: SharedStore, store: Store, *, gives: bool, fetches: bool, keys: Collection[str] | None = None
) -> Exchange:
    """Give what a shared store lacks, fetch what the local one lacks, or both.

    Raises `UnreachableError` if the shared store fails; what was exchanged until then stays. Raises `StoreError` if the
    local disk refuses.

    Args:
        shared: One that is written if `gives`.
        store: One that may be written.
        gives: Whether to give.
        fetches: Whether to fetch.
        keys: The only results to look at; by default all.
    """
    shared.check() if gives else shared.require()
    lease = HeldLease(shared.folder, new_run_id())
    if gives:
        lease.hold()
    problems: list[str] = []
    here = {action.key: action for action in store.actions() if keys is None or action.key in keys}
    there = set(shared.all_keys() if keys is None else filter(shared.has, keys))

    def give(action: Action) -> None:
        try:
            shared.give(action, store)
        except DamagedError as error:
            problems.append(str(error))

    not_taken: list[str] = []

    def fetch(key: str) -> None:
        action = shared.find(key)
        if action is None and (why := shared.not_taken(key)) is not None:
            not_taken.append(why)
        elif action is None or not shared.fetch(action, store):
            damage = f"the result {key[:12]} is damaged or not whole in {shared.address}"
            problems.append(f"{damage}; `cache verify --repair` removes it")

    lacking = sorted(there - here.keys()) if fetches else []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            if gives and shared.signatures.signers is not None:  # What has no signature that counts is replaced.
                list(threads.map(shared.find, sorted(here.keys() & there)))
                there -= {key for key in here if shared.not_taken(key) is not None}
            surplus = [here[key] for key in sorted(here.keys() - there)] if gives else []
            for done in (threads.map(give, surplus), threads.map(fetch, lacking)):
                list(done)
        except BaseException:
            shared.folder.stop()
            threads.shutdown(cancel_futures=True)
            raise
    if gives:
        lease.end()
    if not_taken:
        problems.append(
            f"{count(len(not_taken), 'result')} of {shared.address} are not taken (${SIGNERS}): {not_taken[0]}"
        )
    both = len(here.keys() & there)
    return Exchange(_exchanged(shared.sent, both), _exchanged(shared.fetched, both), problems)


def _exchanged(traffic: Traffic, there: int) -> Exchanged:
    return Exchanged(traffic.results, there, traffic.bytes, traffic.bytes_per_second)
