"""Workflows and conversions as jobs of the server: each in a child process, `olivelike run … --json`, one at a time.

Its lines of JSON are the events. `GALLERY/.runs/ID/` keeps them, and the report; the journal keeps the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import sqlite3
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._text import size
from olivelike._untrusted import Json, JsonView, parse_json, terminal_text
from olivelike.errors import OlivelikeError, PassError, SourceError, StoreError, UsageError, VerificationError
from olivelike.serve.gallery.journal import JobRow
from olivelike.serve.runs.run_orders import Listings, RunOrder, RunView
from olivelike.serve.views import ENDED, ErrorView, Event, JobState, QueueFull, iso

if TYPE_CHECKING:
    from olivelike.serve.catalogue import Catalogue
    from olivelike.serve.feed import Feed
    from olivelike.serve.gallery.gallery import Gallery
    from olivelike.serve.settings import ServeSettings

_MOST_WAITING: Final = 20
_MOST_PLANS: Final = 5
_KEPT: Final = 200
"""Runs whose events and reports are kept."""
_RUN: Final = re.compile(r"[0-9a-f]{16}")
_LONGEST_LINE: Final = 8 << 20
_SECONDS_TO_PLAN: Final = 180
_GRACE: Final = 10.0
"""Seconds that a child has to stop its workers and clean up."""
_PASSING: Final = frozenset({"run_progress", "node_progress", "node_running"})
"""Events that nobody wants to see again."""
_EXIT_ERRORS: Final[Mapping[int, type[OlivelikeError]]] = {
    2: UsageError,
    3: SourceError,
    4: PassError,
    5: VerificationError,
}


class Runs:
    """The runs of a server, between `start` and `close`; used in its event loop alone."""

    def __init__(self, settings: ServeSettings, catalogue: Catalogue, gallery: Gallery, feed: Feed) -> None:
        self._catalogue, self._feed, self._journal = catalogue, feed, gallery.journal
        self.listings = Listings(settings, catalogue.lora_files)
        self._folder = gallery.folder / ".runs"
        self._waiting: deque[str] = deque()
        self._came = asyncio.Event()
        self._planning = asyncio.Lock()
        self._plans = 0
        """Count of plans that are being made, or wait for it."""
        self._running: str | None = None
        self._child: Process | None = None
        self._cancelled: set[str] = set()
        self._progress: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Say of what a killed server has left that it was interrupted, and begin to run."""
        for row in self._journal.unfinished():
            if row.kind == "run":
                self._interrupted(row.id)
        self._prune()
        self._task = asyncio.create_task(self._run_all(), name="runs")

    async def close(self) -> None:
        """End the child, and let it clean up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def plan(self, order: RunOrder) -> list[str]:
        """Return what a run would do, as lines for people.

        Raises `SourceError` for a name that is not listed, or what the child finds missing, `UsageError` for a workflow
        that is wrong, and `QueueFull` if too many wait for theirs.
        """
        if self._plans >= _MOST_PLANS:
            raise QueueFull(self._plans, 10)
        self._plans += 1
        try:
            words = await asyncio.to_thread(self.listings.command, order)
            async with self._planning:
                return await self._planned(words)
        finally:
            self._plans -= 1

    async def submit(self, order: RunOrder, client: str) -> RunView:
        """Queue a run.

        Raises:
            SourceError: for a name that is not listed.
            UsageError: for a workflow that is wrong, or names plugins.
            QueueFull: if too many wait.
            StoreError: if it can't be written down.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise QueueFull(len(self._waiting), 60)
        words = await asyncio.to_thread(self.listings.command, order)
        run, asked = secrets.token_hex(8), {**order.model_dump(mode="json"), "name": self.listings.name(order)}
        try:
            (self._folder / run).mkdir(parents=True)
            self._journal.add(JobRow(run, "run", client, "queued", time.time(), asked, {"files": 0, "words": words}))
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self._folder}: the run can't be written down: {error}; free some space") from error
        self._waiting.append(run)
        self._came.set()
        self._feed.publish({"type": "queued", "job": run, "position": len(self._waiting) - 1})
        return self.view(self._row(run))

    def run(self, run: str) -> RunView:
        """Return a run as it is now. Raises `SourceError` if there is none of that id."""
        return self.view(self._row(run))

    def runs(self, limit: int, *, client: str | None = None) -> list[RunView]:
        """Return the newest runs, newest first; of one client, or all."""
        return [self.view(row) for row in self._journal.jobs(limit=limit, kind="run", client=client)]

    def cancel(self, run: str) -> None:
        """End a run that has not ended; what it has finished is stored."""
        if run in self._waiting:
            self._waiting.remove(run)
            self._end(run, "cancelled")
        elif self._running == run:
            self._cancelled.add(run)
            if self._child is not None:
                _stop(self._child)

    def report(self, run: str) -> Path:
        """Return the file of a run's report. Raises `SourceError` if there is none."""
        path = self._folder / self._row(run).id / "report.html"
        if not path.is_file():
            raise SourceError(f"run {run} has no report; one that did nothing, or failed at once, writes none")
        return path

    async def events(self, run: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Return all that has happened in a run behind event number `after`, and what happens until it has ended."""
        with self._feed.listening(run) as listener:
            row, number = self._row(run), 0
            yield {"type": "state", **self.view(row).model_dump(mode="json")}
            for number, line in enumerate(self._stored(run), 1):
                if number > after:
                    yield _event(run, number, parse_json(line))
            if row.state in ENDED:  # As it was; else its end is among what the listener has.
                return
            async for event in listener.events():
                if event["type"] == "run" and (event["number"] > number or event["event"]["event"] in _PASSING):
                    yield event
                elif event["type"] != "run":
                    yield {"type": "state", **self.run(run).model_dump(mode="json")}
                if event["type"] in ENDED:
                    return

    def view(self, row: JobRow) -> RunView:
        """Return what is told of a run."""
        found, error = row.found or {}, row.error
        state = "running" if row.state == "drawing" else row.state
        return RunView(
            id=row.id,
            name=row.asked["name"],
            state="interrupted" if error and error["code"] == "interrupted" else state,
            position=self._waiting.index(row.id) if row.id in self._waiting else None,
            created=iso(row.created) or "",
            started=iso(row.started),
            finished=iso(row.finished),
            order={key: value for key, value in row.asked.items() if key != "name"},
            progress=self._progress if self._running == row.id else found.get("progress", {}),
            report=f"/api/runs/{row.id}/report" if found.get("report") else None,
            outputs=found.get("outputs", []),
            error=ErrorView(**error) if error else None,
        )

    async def _planned(self, words: Sequence[str]) -> list[str]:
        child = await _start([*words, "--dry-run"], PIPE)
        try:
            out, errors = await asyncio.wait_for(child.communicate(), _SECONDS_TO_PLAN)
        except TimeoutError:
            raise PassError(f"the plan took longer than {_SECONDS_TO_PLAN} s") from None
        finally:
            _kill(child)
        if child.returncode:
            text = terminal_text(errors.decode("utf-8", "replace")).strip().removeprefix("error: ")
            raise _EXIT_ERRORS.get(child.returncode, OlivelikeError)(text)
        return terminal_text(out.decode("utf-8", "replace")).splitlines()

    def _row(self, run: str) -> JobRow:
        row = self._journal.find(run)
        if row is None or row.kind != "run":
            raise SourceError(f"there is no run {run!r}")
        return row

    def _stored(self, run: str) -> Sequence[bytes]:
        try:
            return (self._folder / run / "events.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return ()

    def _end(self, run: str, state: JobState, code: str = "", message: str = "") -> None:
        self._journal.end(run, state, {"code": code, "message": message} if code else None)
        self._feed.publish({"type": state, "job": run, "view": self.run(run).model_dump(mode="json")})

    def _prune(self) -> None:
        """Drop the files of runs before the last ones."""
        kept = {row.id for row in self._journal.jobs(limit=_KEPT, kind="run")}
        folders = self._folder.iterdir() if self._folder.is_dir() else ()
        for folder in folders:
            if _RUN.fullmatch(folder.name) and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _interrupted(self, run: str) -> None:
        self._end(run, "failed", "interrupted", "the server ended; what was finished is stored: run it again")

    async def _run_all(self) -> None:
        while True:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            self._running = run = self._waiting.popleft()
            try:
                await self._run(run)
            except (OSError, ValueError, sqlite3.Error) as error:  # A line without end is a ValueError.
                with contextlib.suppress(sqlite3.Error):
                    self._end(run, "failed", "store", f"the run can't be started or written down: {error}")
            except asyncio.CancelledError:
                self._interrupted(run)
                raise
            finally:
                self._running = self._child = None
                self._cancelled.discard(run)

    async def _run(self, run: str) -> None:
        folder, words = self._folder / run, self._row(run).plan["words"]
        self._journal.update(run, state="drawing", started=time.time())
        self._progress = {}
        with (folder / "errors.txt").open("wb") as errors:
            self._child = child = await _start([*words, "--json"], errors)
        if run in self._cancelled:
            _stop(child)
        self._feed.publish({"type": "started", "job": run})
        try:
            finished = await self._follow(run, child, folder / "events.jsonl")
            status = await child.wait()
        finally:
            await asyncio.shield(_ended(child))
        if status == 0 and self._progress:
            self._progress["done"] = self._progress["total"]
        report = await asyncio.to_thread(_copy_report, finished.get("report"), folder / "report.html")
        found = {"progress": self._progress, "report": report, "outputs": self._served(finished.get("output"))}
        self._journal.update(run, found=found)
        if status == 0:
            self._end(run, "done")
        elif run in self._cancelled:
            self._end(run, "cancelled")
        else:
            said = finished.get("error") or (folder / "errors.txt").read_text("utf-8", "replace")[-2000:]
            word = _EXIT_ERRORS.get(status, OlivelikeError).word
            why = f"the process was ended by signal {-status}" if status < 0 else terminal_text(str(said))
            self._end(run, "failed", word, why)

    async def _follow(self, run: str, child: Process, path: Path) -> JsonView:
        """Keep the child's events and tell them; return the last."""
        assert child.stdout is not None
        number, event = 0, Json()
        with path.open("ab") as kept:
            while line := await child.stdout.readline():
                if (said := _read(line)) is None:
                    continue  # What a library prints is no event.
                event = said
                if event["event"] == "run_progress":
                    self._progress = {"done": event["done"], "total": event["total"]}
                if event["event"] not in _PASSING:
                    number += 1
                    kept.write(line)
                    kept.flush()
                self._feed.publish(_event(run, number, event))
        return event

    def _served(self, output: str | list[str] | None) -> list[str]:
        """Return the names under which what was written is served."""
        paths = [Path(path).resolve() for path in ([output] if isinstance(output, str) else output or ())]
        return [name for name, folder in self._catalogue.folders().items() if folder in paths]


def _read(line: bytes) -> Json | None:
    with contextlib.suppress(ValueError):
        event = parse_json(line, halves=True)
        if isinstance(event, dict) and "event" in event:
            return event
    return None


def _event(run: str, number: int, event: JsonView) -> Event:
    return {"type": "run", "job": run, "run": run, "number": number, "text": _said(event), "event": event}


def _said(event: JsonView) -> str:
    """Return a line for people, as `olivelike run` writes it; empty for what needs no line."""
    node = event.get("node")
    match event["event"]:
        case "run_started":
            return f"{event['workflow']}: {event['nodes']} nodes"
        case "warning":
            return f"warning: {event['message']}"
        case "node_waiting" | "node_hit" | "node_shelved" | "node_skipped" as kind:
            return f"{node} {kind.removeprefix('node_')}: {event.get('reason', '')}"
        case "node_started":
            return f"{node} begins"
        case "node_finished":
            return f"{node} {event['seconds']:.1f} s, {size(event['peak_memory_bytes'])}"
        case "node_failed":
            return f"{node} failed: {event['error'].partition(chr(10))[0]}"
        case "output_published" | "output_unchanged" as kind:
            return f"{Path(event['path']).name} {kind.removeprefix('output_')}"
        case "run_finished":
            return f"{event['status']} in {event['seconds']:.1f} s" + (f": {event['error']}" if event["error"] else "")
        case _:
            return ""


async def _start(words: Sequence[str], errors: Any) -> Process:
    """Start `olivelike` with words of the command line, without the server's secrets."""
    environment = {name: value for name, value in os.environ.items() if name != "OLIVELIKE_API_KEY"}
    environment |= {"COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "olivelike", *words,
        stdin=DEVNULL, stdout=PIPE, stderr=errors, limit=_LONGEST_LINE, env=environment,
        start_new_session=True,
    )  # fmt: skip


def _stop(child: Process) -> None:
    """Ask a child to end, as Ctrl-C does; one that does not is killed."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        asyncio.get_running_loop().call_later(_GRACE, _kill, child)


async def _ended(child: Process) -> None:
    """Wait until a child has ended that may have been left in the middle."""
    _stop(child)
    assert child.stdout is not None
    while await child.stdout.read(1 << 20):  # It may have more to say than a pipe holds.
        pass
    await child.wait()


def _kill(child: Process) -> None:
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)  # Its workers too.
        child.kill()


def _copy_report(written: str | None, place: Path) -> bool:
    """Keep a run's report beside its events; tell whether there is one."""
    if written is None:
        return False
    try:
        shutil.copyfile(written, place)
    except OSError:
        return False
    return True
