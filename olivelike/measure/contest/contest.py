"""Children that take turns: each is warmed up, then all are measured in rounds, so that a drift hits all alike."""

from __future__ import annotations

import contextlib
import queue
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

from olivelike._json_child import JsonChild, last_words
from olivelike._untrusted import Json, JsonView
from olivelike.measure.contest.engine import Job, Timing, Turn, encode_job
from olivelike.measure.contest.memory import NvidiaDriver, Peaks, Surroundings, open_driver, surveying, watching

EventName = Literal["opening", "opened", "warmed_up", "measuring", "measured", "failed"]
Status = Literal["absent", "out of memory", "failed", "died", "timed out", "interrupted"]
_WATCHED_RUNS = 2


@dataclass(frozen=True)
class Event:
    """Something that a child did."""

    name: EventName
    engine: str
    """Empty as all begin to be measured."""
    pid: int
    text: str = ""
    """Reason for a failure; of `measured`, of what the time is."""
    seconds: float = 0.0
    """Time that it took; of `measured` the median until then, of `measuring` that all measured runs will take, by the
    last ones before."""


@dataclass
class Measured:
    """Measurements of one child so far."""

    facts: Mapping[str, str] = field(default_factory=dict)
    load_seconds: float | None = None
    """From the order to open until it is ready, imports included."""
    warmup: list[Timing] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    surroundings: Surroundings = field(default_factory=Surroundings)
    """Work of others beside the measured runs."""
    status: Literal["ok"] | Status = "ok"
    message: str = ""
    """Why it is not ok."""
    first: Peaks = field(default_factory=Peaks)
    """Memory while it opened, and in its first run."""
    second: Peaks = field(default_factory=Peaks)
    """In its second run."""
    peak_bytes: int | None = None
    """The most that its process had resident, as the operating system counted it; `None` if it never answered."""
    rest_bytes: int | None = None
    """Memory that its process had resident as it last answered."""
    device_bytes: int | None = None
    """The most on the GPU: by the driver, else by the engine's allocator."""

    @property
    def first_step_seconds(self) -> float | None:
        """From the order to open until the first step of the first run is done."""
        first = next((timing.first_step for timing in (*self.warmup, *self.timings)), None)
        return None if first is None or self.load_seconds is None else self.load_seconds + first

    @property
    def tree_bytes(self) -> int | None:
        """The most of the process with all that it started."""
        if self.peak_bytes is None:
            return None
        return max(self.peak_bytes, self.first.tree, self.second.tree)


class ContestInterrupted(KeyboardInterrupt):
    """Somebody stopped a contest."""

    def __init__(self, measured: dict[str, Measured]) -> None:
        super().__init__()
        self.measured = measured
        """Measurements until then, by name."""


def contest(
    jobs: Mapping[str, Job],
    warmup: Sequence[Turn],
    turns: Sequence[Turn],
    limit: float,
    listen: Callable[[Event], None] = lambda _: None,
    look: Callable[[], None] = lambda: None,
) -> dict[str, Measured]:
    """Measure engines against each other.

    Returns what was measured, by name. An engine that fails is marked; the others go on. Raises `ContestInterrupted`
    with what was measured so far.

    Args:
        jobs: by name; a process for each.
        turns: measured runs. Each is done by every engine before the next; who begins changes from one to the next.
        limit: seconds that an engine may take to open, or for a run.
        look: is called right after the last run, before the processes end.
    """
    driver = open_driver()
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="olivelike-bench-")))
        contenders: list[_ChildContender] = []
        try:
            for number, (name, job) in enumerate(jobs.items()):
                contender = _ChildContender(name, Child(logs / f"{number}.log"), limit, driver, listen)
                stack.callback(contender.child.stop)
                contenders.append(contender)
                contender.open(encode_job(job))
            hold(contenders, warmup, turns, lambda: _tell_what_is_left(contenders, len(turns), listen))
            look()
        except KeyboardInterrupt:
            raise ContestInterrupted({contender.name: contender.measured for contender in contenders}) from None
        return {contender.name: contender.measured for contender in contenders}


class Contender(Protocol):
    """One of those that take turns, in a process of its own or in this one."""

    def run(self, turn: Turn, *, measured: bool) -> None:
        """Run once, and keep what was found if it is measured."""

    def warmed_up(self) -> None:
        """Its runs before the measured ones are done."""


def hold(
    contenders: Sequence[Contender],
    warmup: Sequence[Turn],
    turns: Iterable[Turn],
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Warm each contender up, then have all take turns; who begins changes from one to the next."""
    for contender in contenders:
        for turn in warmup:
            contender.run(turn, measured=False)
        contender.warmed_up()
    begin()
    for number, turn in enumerate(turns):
        first = number % max(len(contenders), 1)
        for contender in (*contenders[first:], *contenders[:first]):
            contender.run(turn, measured=True)


def _tell_what_is_left(contenders: Sequence[_ChildContender], turns: int, listen: Callable[[Event], None]) -> None:
    warm = [contender.measured.warmup[-1].seconds for contender in contenders if contender.measured.warmup]
    if warm:
        listen(Event("measuring", "", 0, seconds=turns * sum(warm)))


class _ChildContender:
    """A contender in a process of its own, and what was measured of it so far."""

    def __init__(
        self, name: str, child: Child, limit: float, driver: NvidiaDriver | None, listen: Callable[[Event], None]
    ) -> None:
        self.name, self.child, self.measured = name, child, Measured()
        self._limit, self._driver, self._listen = limit, driver, listen

    def open(self, job: Json) -> None:
        self.tell("opening")
        with watching(self.child.pid, self._driver) as self.measured.first:
            answer = self._ask(job)
        if answer is not None:
            self.measured.facts, self.measured.load_seconds = answer["facts"], answer["load_seconds"]
            self.tell("opened", seconds=answer["load_seconds"])

    def run(self, turn: Turn, *, measured: bool) -> None:
        """Run once, if nothing has failed."""
        so_far = self.measured
        if so_far.status != "ok":
            return
        done = len(so_far.warmup) + len(so_far.timings)
        with surveying() as found:
            if done < _WATCHED_RUNS:
                with watching(self.child.pid, self._driver) as peaks:
                    answer = self._ask(vars(turn))
                self._keep(peaks, second=done > 0)
            else:
                answer = self._ask(vars(turn))
        if answer is None:
            return
        timing = Timing(**answer["timing"])
        if not measured:
            so_far.warmup.append(timing)
            return
        so_far.timings.append(timing)
        so_far.surroundings = sum(found, start=so_far.surroundings)
        seconds = [one.seconds for one in so_far.timings]
        self.tell("measured", f"the median of {len(seconds)}", median(seconds))

    def warmed_up(self) -> None:
        warm = self.measured.warmup
        self.tell("warmed_up", seconds=warm[-1].seconds if warm else 0.0)

    def tell(self, name: EventName, text: str = "", seconds: float = 0.0) -> None:
        """Tell whoever listens, of a failed engine only that it failed."""
        if name == "failed" or self.measured.status == "ok":
            self._listen(Event(name, self.name, self.child.pid, text, seconds))

    def _ask(self, message: Json) -> Json | None:
        try:
            answer = self.child.ask(message, self._limit)
        except ChildFailure as failure:
            why = str(failure).removeprefix(f"{self.name}: ")
            self.measured.status, self.measured.message = failure.status, why
            self.tell("failed", why)
            self.child.stop()  # It may hold memory that the others need.
            return None
        self.measured.peak_bytes, self.measured.rest_bytes = answer["peak_bytes"], answer["resident_bytes"]
        self.measured.device_bytes = _most(self.measured.device_bytes, answer["device_bytes"])
        return answer

    def _keep(self, peaks: Peaks, *, second: bool) -> None:
        if second:
            self.measured.second = peaks
            return
        opened = self.measured.first
        self.measured.first = Peaks(
            max(opened.resident, peaks.resident, self.measured.peak_bytes or 0),
            max(opened.tree, peaks.tree),
            _most(opened.device, peaks.device),
        )


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


class ChildFailure(Exception):  # noqa: N818  (marks a row, and is no error of the command)
    """A child gave no result."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status


class Child:
    """A worker process; the threads of its engine idle while it is not asked."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._answers: queue.SimpleQueue[Json | int] = queue.SimpleQueue()
        put = self._answers.put
        self._process = JsonChild("olivelike.measure.contest.contest_worker", log, put, put)
        self.pid = self._process.pid
        self.stop = self._process.stop

    def ask(self, message: JsonView, limit: float) -> Json:
        """Send a message and wait for its answer.

        Raises `ChildFailure` if there is no answer, or it says that something failed. A child that takes longer than
        `limit` seconds is killed.
        """
        self._process.send(message)
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            raise ChildFailure("timed out", f"gave no answer within {limit:g} s, and was stopped") from None
        if isinstance(answer, int):
            raise ChildFailure("died", last_words(answer, self._log))
        if "status" in answer:
            raise ChildFailure(answer["status"], answer["message"])
        return answer
