"""A shared store as runs use it: asked and fetched from in the background, and given what was made.

A run never waits for it beyond its worth: a result is fetched if that takes less time than making it. After one failure
the run goes on without it, with one warning.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from olivelike._text import count, size
from olivelike.engine.execute.events import Event, Listener
from olivelike.engine.execute.sharing import Found, Unshared
from olivelike.errors import DamagedError, StoreError
from olivelike.extras.shared_store.leases import HeldLease
from olivelike.extras.shared_store.record_signatures import SIGNERS
from olivelike.extras.shared_store.requests import LateError

if TYPE_CHECKING:
    from olivelike.engine.plan.question import Question
    from olivelike.extras.shared_store.shared_store import SharedStore, Traffic
    from olivelike.store import Action, Store

_PATIENCE_SECONDS: Final = 5.0
"""Longest wait for a word about a result, if making it takes no longer."""
_CONTACT_SECONDS: Final = 10.0
"""Longest wait for the first answer: until then libraries are loaded and lines opened."""
_WORTH: Final = 2.0
"""Most time of a fetch that was begun, as a multiple of the time for making the result."""
_NEGLIGIBLE_SECONDS: Final = 1.0
"""Time for which a fetch is not forgone, however quickly the result is made."""
_LAST_SECONDS: Final = 30.0
"""Longest wait at the end of a run for what it gives, if making that took no longer."""
_GOODBYE_SECONDS: Final = 5.0
_SPEED: Final = "shared-speed/1"
"""Kind of the hint that keeps how fast an address was, in bytes per second."""
_LONG_BYTES: Final = 16 << 20
"""From how many bytes on people are told that a node waits for them."""


class Sharing(Unshared):
    """A shared store behind a local one; `fetched` and the like are called by one thread of each run."""

    def __init__(self, shared: SharedStore, store: Store, listener: Listener, run_id: str) -> None:
        """Connect to nothing yet; the shared store is this run's alone."""
        self._shared = shared
        self._store, self._listener = store, listener
        self._lease = HeldLease(self._shared.folder, run_id)
        self._threads = ThreadPoolExecutor(4, "fetch")
        self._givers = ThreadPoolExecutor(2, "give")
        self._asked: dict[str, Future[Found]] = {}
        self._given: dict[str, Future[bool]] = {}
        self._fetching: dict[str, int] = {}
        """Bytes of the results that are being fetched."""
        self._worth = _LAST_SECONDS
        """Seconds that making the results took that are being given."""
        self._guard, self._opening = threading.Lock(), threading.Lock()
        self._is_open = self._is_closed = False
        self._asks, self._gives = True, self._shared.writable
        self._told: set[str] = set()
        """Ways in which a record did not hold that the user was told of."""
        self._problems: list[str] = []
        """Problems that the user is told of at the end."""
        known = store.recall_json(_SPEED, str(shared))
        self._known_speed = float(known) if isinstance(known, (int, float)) and known > 0 else None

    def fetched(self, question: Question, expected_seconds: float | None) -> Found | None:
        """Return what came of asking for a result, or `None` while it is asked or fetched."""
        key = question.key.digest
        with self._guard:
            if key not in self._asked:
                if not self._asks:
                    return Found()
                self._asked[key] = self._threads.submit(self._ask, question, expected_seconds)
            future = self._asked[key]
        if not future.done():
            return None
        self._say()
        found = future.result()
        if found.action is not None:  # It is stored here now. If it is asked for again, it was lost.
            with self._guard:
                self._asked.pop(key, None)
        return found

    def waits_for(self, key: str) -> str | None:
        """Return what of a result is being fetched, if that may take a while."""
        wanted = self._fetching.get(key, 0)
        return f"fetching {size(wanted)} from {self._shared.address}" if wanted >= _LONG_BYTES else None

    def look(self, question: Question) -> Found:
        """Return a result's record without fetching it."""
        if not self._asks:
            return Found()
        try:
            action, wrong = self._found(question, time.monotonic() + _PATIENCE_SECONDS)
            if action is None:
                return wrong
            if (flaw := question.flaw(action, self._shared.content)) is not None:
                return self._wrong(question, flaw)
            wanted = self._shared.missing_bytes(action, self._store)
        except StoreError as error:
            self._fail(error)
            return Found()
        return Found(action, f"stored in {self._shared.address}, {size(wanted)} to fetch")

    def content(self, digest: str) -> bytes | None:
        """Return a small object without storing it."""
        try:
            return self._shared.content(digest) if self._asks else None
        except StoreError as error:
            self._fail(error)
            return None

    def use(self, key: str) -> None:
        """Note that a stored result is used."""
        self._lease.use(key)

    def offer(self, action: Action, *, anew: bool = False) -> None:
        """Give a result that was made, in the background; with `anew`, in place of what is there."""
        self._say()
        self._lease.use(action.key)
        with self._guard:
            if self._gives and self._shared.may_give and action.key not in self._given:
                self._worth += action.seconds
                self._given[action.key] = self._givers.submit(self._give, action, anew)

    def close(self, *, hurry: bool = False) -> None:
        """Wait for what is being given, as long as that is worth it, and end all requests."""
        late: set[Future[bool]] = set()
        try:
            if not hurry:
                late = wait(self._given.values(), timeout=self._worth).not_done
                if self._is_open and self._gives:
                    self._say_goodbye()
        finally:
            self._is_closed = True
            self._shared.folder.stop()
            for threads in (self._threads, self._givers):
                threads.shutdown(wait=True, cancel_futures=True)
        self._say()
        if late:
            self._tell_warning(
                f"{count(len(late), 'result')} did not get to {self._shared.address} in time; "
                "`olivelike cache push` sends them"
            )
        fetched, sent = self._shared.fetched, self._shared.sent
        if (speed := fetched.bytes_per_second) is not None and self._store.writable:
            self._store.remember_json(_SPEED, str(self._shared.address), speed)
        if fetched.results or sent.results:
            data = {"address": str(self._shared.address), "fetched": _told(fetched), "given": _told(sent)}
            self._listener(Event("shared_store", data))

    def problems(self) -> list[str]:
        """Return what went wrong and was not told yet; each thing once."""
        with self._guard:
            told, self._problems = self._problems, []
        return told

    def _ask(self, question: Question, expected_seconds: float | None) -> Found:
        try:
            if not self._opens():
                return Found()
            start = time.monotonic()
            action, wrong = self._found(question, start + max(_PATIENCE_SECONDS, expected_seconds or 0.0))
            if action is None:
                return wrong
            return self._fetch(question, action, expected_seconds or action.seconds)
        except DamagedError:  # What had come was collected meanwhile.
            return Found()
        except StoreError as error:
            self._fail(error)
            return Found()

    def _found(self, question: Question, ends: float) -> tuple[Action | None, Found]:
        """Return the record that is there, if it is one of such a result, and else what came of looking."""
        key = question.key.digest
        action = self._shared.find(key, ends)
        if action is None and (why := self._shared.not_taken(key)) is not None:
            return None, self._not_taken(question, why)
        if action is None:
            damaged = self._shared.is_damaged(key)
            return None, self._wrong(question, "it is damaged, or of another result") if damaged else Found()
        flaw = question.flaw_of_record(action)
        return (action, Found()) if flaw is None else (None, self._wrong(question, flaw))

    def _wrong(self, question: Question, flaw: str) -> Found:
        """Tell of the first record that does not hold; who makes its result puts that in its place."""
        self._shared.set_damaged(question.key.digest)
        return self._tell_once(question, f"what {self._shared.address} has of it is wrong", flaw)

    def _not_taken(self, question: Question, why: str) -> Found:
        """Tell of the first record that is not signed as it has to be."""
        return self._tell_once(question, f"what {self._shared.address} has of it is not taken (${SIGNERS})", why)

    def _tell_once(self, question: Question, what: str, why: str) -> Found:
        with self._guard:
            if what not in self._told:
                self._problems.append(f"{question.node.id}: {what}: {why}; such results are made anew")
            self._told.add(what)
        return Found(None, f"{what}: {why}")

    def _fetch(self, question: Question, action: Action, seconds_to_make: float) -> Found:
        start, address = time.monotonic(), self._shared.address
        wanted = self._shared.missing_bytes(action, self._store)
        speed = self._shared.fetched.bytes_per_second or self._known_speed
        if speed is not None and wanted / speed > seconds_to_make + _NEGLIGIBLE_SECONDS:
            usual = f"{size(wanted)} from {address} would take {wanted / speed:.0f} s"
            return Found(None, f"{usual}, making it about {seconds_to_make:.0f}")
        self._fetching[action.key] = wanted
        flaws: list[str] = []

        def is_sound(fetched: Action) -> bool:
            read = self._store.read_bytes
            flaws.extend(filter(None, (question.flaw(fetched, read) or question.flaw_within(fetched, read),)))
            return not flaws

        try:
            ends = start + _PATIENCE_SECONDS + _WORTH * seconds_to_make
            if not self._shared.fetch(action, self._store, ends=ends, is_sound=is_sound):
                damaged = Found(None, f"what {address} has of it is damaged or not whole")
                return self._wrong(question, flaws[0]) if flaws else damaged
        except LateError:
            return Found(None, f"fetching {size(wanted)} from {address} takes longer than making it")
        finally:
            del self._fetching[action.key]
        self._lease.use(action.key)
        return Found(action, f"fetched from {address}, {size(wanted)} in {time.monotonic() - start:.1f} s")

    def _give(self, action: Action, anew: bool) -> bool:
        try:
            return self._opens() and self._shared.give(action, self._store, anew=anew)
        except (DamagedError, LateError):  # The run finds damage by itself, and tells what was late.
            return False
        except StoreError as error:
            self._fail_giving(error)
            return False

    def _opens(self) -> bool:
        """Make sure once that there is a shared store, and say that we use it; tell whether there is."""
        with self._opening:
            if not self._is_open and self._asks:
                try:
                    self._shared.check(time.monotonic() + _CONTACT_SECONDS)
                except StoreError as error:
                    self._fail(error)
                    return False
                self._is_open = True
                if self._gives:
                    try:
                        self._lease.hold()
                    except StoreError as error:
                        self._fail_giving(error)
        return self._is_open and self._asks

    def _say_goodbye(self) -> None:
        ended = threading.Thread(target=self._end_lease, daemon=True)
        ended.start()
        ended.join(_GOODBYE_SECONDS)

    def _end_lease(self) -> None:
        with contextlib.suppress(StoreError):  # It runs out by itself.
            self._lease.end()

    def _fail(self, error: StoreError) -> None:
        """Stop asking and giving."""
        with self._guard:
            if self._asks and not self._is_closed:
                self._problems.append(f"{error}; going on with what is stored here")
            self._asks = self._gives = False

    def _fail_giving(self, error: StoreError) -> None:
        """Stop giving: one who may only read is refused then."""
        with self._guard:
            if self._gives:
                self._problems.append(f"{error}; what is made is kept here alone")
            self._gives = False

    def _say(self) -> None:
        for problem in self.problems():
            self._tell_warning(problem)

    def _tell_warning(self, message: str) -> None:
        self._listener(Event("warning", {"message": message}))


def _told(traffic: Traffic) -> dict[str, float | int | None]:
    speed = traffic.bytes_per_second
    return {
        "results": traffic.results,
        "bytes": traffic.bytes,
        "seconds": round(traffic.seconds, 3),
        "bytes_per_second": None if speed is None else round(speed),
    }
