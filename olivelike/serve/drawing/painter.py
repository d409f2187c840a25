"""The parent's end of the child that draws: plans, one drawing at a time, and what if it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from olivelike._files import identity_at
from olivelike._json_child import last_words
from olivelike._untrusted import Json, JsonView
from olivelike.errors import SessionError, error_of
from olivelike.serve.drawing.loop_child import LoopChild, call_soon

MODULE: Final = "olivelike.serve.drawing.painting"
"""Module that the child runs."""
_GRACE: Final = 5.0
"""Seconds that a child has to end a job; then it is ended itself."""
_PATIENCE: Final = 120.0
"""Seconds until a child that does not plan an order is taken for stuck."""
LOST: Final = -1000
"""Status of a child whose machine is gone."""
LAST: Final = frozenset({"done", "failed", "cancelled"})
"""Answers after which there are none of the job."""


class ChildEnded(Exception):  # noqa: N818  (named after the event)
    """The child ended in the middle; the text says how."""


class ChildLost(ChildEnded):
    """The machine that the child ran on is gone; what it drew is to be drawn elsewhere."""


class Child(Protocol):
    """The parent's end of a process that draws."""

    @property
    def pid(self) -> int | None:
        """Its process id, if it runs on this machine."""

    def send(self, message: JsonView) -> None:
        """Tell it; of one that has died, `end` is called and this says nothing."""

    def stop(self) -> None:
        """End it."""


class Workers(Protocol):
    """Machines that draw, each by one process; an extra's, made of an address and a folder of the server's.

    Making them raises `MissingError` or `SessionError` if there are none that fit.
    """

    @property
    def size(self) -> int:
        """Number of machines now."""

    def child(self, log: Path, hear: Callable[[Json], None], end: Callable[[int], None]) -> Child:
        """Start a process on a machine that has none yet, as soon as there is one."""

    def close(self) -> None:
        """Let the machines go."""


class Painter:
    """A child that draws, started again when it dies; used in one event loop."""

    def __init__(
        self, settings: JsonView, log: Path, hear: Callable[[JsonView], None], cluster: Workers | None = None
    ) -> None:
        """Take what the child is told first.

        Args:
            settings: as `Painting` takes them.
            log: gets what the child prints.
            hear: is called with what the child tells unasked.
            cluster: where the child is started; by default on this machine.
        """
        self._cluster = cluster
        self._may_draw = asyncio.Event()
        if cluster is None:
            self._may_draw.set()  # A child that is not there is started for a job.
        self._settings, self._log, self._hear_more = settings, log, hear
        self._child: Child | None = None
        self._starts = 0
        """How often a child was started; what an earlier one says is not heard any more."""
        self._ready = False
        self._questions: dict[int, asyncio.Future[Json]] = {}
        self._told_of: dict[int, Callable[[int, int], None]] = {}
        """Who hears how far an answer is, by the number of its question."""
        self._scales: dict[tuple[str, tuple[int, ...]], int] = {}
        """How many times as large upscalers that ran make pictures, by path and identity."""
        self._asked = 0
        self._drawing: asyncio.Queue[JsonView | ChildEnded] | None = None
        self._job: str | None = None
        self._finishing: str | None = None
        """The job that was ended, and of which the child lays out what there is."""
        self._closed = False
        self.previews = False

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._child.pid if self._child is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether the child has started, and lives."""
        return self._ready

    async def may_draw(self) -> None:
        """Wait until a job may be given to it."""
        await self._may_draw.wait()

    def start(self) -> Child:
        """Start the child, if there is none."""
        if self._closed:
            raise ChildEnded("the server is ending")
        if self._child is None:
            self._starts += 1
            hear, end = partial(self._heard, self._starts), partial(self._ended, self._starts)
            if self._cluster is not None:
                soon = partial(call_soon, asyncio.get_running_loop())
                self._child = self._cluster.child(self._log, partial(soon, hear), partial(soon, end))
            else:
                self._child = LoopChild(MODULE, self._log, hear, end)
            self._child.send(self._settings)
            if self.previews:
                self._child.send({"do": "previews", "wanted": True})
        return self._child

    async def plan(self, **arguments: Any) -> Json:
        """Return what the child finds out of an order, as `Painting` takes it.

        Raises the `OlivelikeError` that it answers with, and `SessionError` if it dies of it, twice.
        """
        return await self._answer_to("plan", arguments, _PATIENCE)

    async def plan_and_draw(self, message: JsonView, **arguments: Any) -> Json:
        """Return what `plan` does; the child begins what it has planned, as `draw` without a message tells then.

        The message is one of `draw`. Nothing is drawn if this raises, and no file is written before `keep`.
        """
        self._job = message["job"]
        try:
            more = {name: value for name, value in message.items() if name not in arguments}
            return await self._answer_to("plan", {**arguments, "draw": more}, _PATIENCE)
        except asyncio.CancelledError:  # The child goes on, and draws.
            self.let_go(message["job"])
            raise
        except BaseException:
            self._drawing = None
            raise

    async def enlarge(self, *, seconds: float, tell: Callable[[int, int], None], **arguments: Any) -> Json:
        """Let the child enlarge a picture within so many seconds, as `Painting` takes it. Raises as `plan`.

        `tell` is called with tiles that are done, and all there are. Who cancels this ends it before the next tile.
        """
        return await self._answer_to("enlarge", arguments, seconds, tell)

    def scale_of(self, upscaler: Path) -> int | None:
        """Return how many times as large an upscaler's file makes pictures; `None` before it has run."""
        path = upscaler.absolute()
        return self._scales.get((str(path), identity_at(path) or ()))

    async def _answer_to(
        self, question: str, arguments: JsonView, seconds: float, tell: Callable[[int, int], None] | None = None
    ) -> Json:
        for _ in range(2):
            self._asked += 1
            if "draw" in arguments:
                self._drawing = asyncio.Queue()  # What an earlier child told is over.
            future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
            number = self._asked
            self._questions[number] = future
            if tell is not None:
                self._told_of[number] = tell
            try:
                self.start().send({"do": question, "number": number, "arguments": arguments})
                async with asyncio.timeout(seconds):
                    return await future
            except asyncio.CancelledError:
                self._end_answer(number)
                raise
            except ChildEnded as error:
                why = str(error)
            except TimeoutError:
                why = f"gave no answer within {seconds:g} s"
                self._end_answer(number)
                if "draw" in arguments or self._drawing is None:
                    await self._begin_anew(why)
            finally:
                self._told_of.pop(number, None)
        raise SessionError(f"the process that draws {why}")

    def _end_answer(self, number: int) -> None:
        """Let the child end what nobody waits for any more: an enlargement, before its next tile."""
        if number in self._told_of and self._child is not None:
            self._child.send({"do": "end", "number": number})

    def begin(self, message: JsonView) -> None:
        """Let the child draw a job; without a folder it writes no file before `keep`."""
        child = self.start()
        self._drawing, self._job = asyncio.Queue(), message["job"]
        child.send({"do": "draw", "draw": message})

    async def draw(self) -> AsyncGenerator[JsonView, None]:
        """Return what the child tells of the job of `begin` or `plan_and_draw`; the last one is one of `LAST`.

        Raises `ChildEnded` if it dies.
        """
        answers = self._drawing
        assert answers is not None
        try:
            while True:
                answer = await answers.get()
                if isinstance(answer, ChildEnded):
                    raise answer
                if answer["answer"] not in LAST:
                    yield answer
                elif answer.get("grown") and self._cluster is None:
                    await self._begin_anew("had grown")
                    yield {**answer, "folders": []}
                    return
                else:
                    yield answer
                    return
        finally:
            self._drawing = None

    async def _begin_anew(self, why: str) -> None:
        """End a child between jobs, and start another; questions are asked again."""
        child, self._child, self._ready, self._drawing = self._child, None, False, None
        self._starts += 1
        asked = list(self._questions)
        if child is not None:
            await asyncio.to_thread(child.stop)  # Whoever asks meanwhile starts another, and has nothing to do with it.
        self._refuse(asked, ChildEnded(f"{why}, and was begun anew"))
        if not self._closed:
            self.start()

    def keep(self, job: str, folder: str, first: int) -> None:
        """Let the child write pictures of a job that was begun without a folder: the journal has it."""
        if self._child is not None:
            self._child.send({"do": "keep", "job": job, "folder": folder, "first": first})

    def let_go(self, job: str) -> None:
        """End a job that nobody hears of any more."""
        self.stop(job)
        self._drawing = None

    def stop(self, job: str, *, skip: bool = False) -> None:
        """Ask the child to end the job that it draws, or its batch; a child that does not is ended itself."""
        if self._child is None:
            return
        self._child.send({"do": "skip" if skip else "cancel", "job": job})
        if not skip:
            asyncio.get_running_loop().call_later(_GRACE, self._end_child, self._starts, self._drawing)

    def warm(self, folder: Path, *, safety: bool) -> None:
        """Let the child open a folder."""
        self.start().send({"do": "warm", "folder": str(folder), "safety": safety})

    def unload(self) -> None:
        """Let the child close all folders, once it has drawn what it draws."""
        if self._child is not None:
            self._child.send({"do": "unload"})

    def show_previews(self, *, wanted: bool) -> None:
        """Say whether anybody looks at previews."""
        if wanted != self.previews:
            self.previews = wanted
            if self._child is not None:
                self._child.send({"do": "previews", "wanted": wanted})

    def close(self) -> None:
        """End the child; a job that it draws is cut off, its files are whole."""
        self._closed = True
        child, self._child = self._child, None
        if child is not None:
            self._starts += 1
            child.stop()
            self._cut_off(ChildEnded("was ended with the server"))

    def _end_child(self, number: int, drawing: object) -> None:
        is_stuck = drawing is self._drawing is not None and self._finishing != self._job
        if number == self._starts and self._child is not None and is_stuck:
            self._child.stop()

    def _heard(self, number: int, answer: JsonView) -> None:
        if number != self._starts:
            return
        match answer["answer"]:
            case "told":
                self._settle(answer["number"], lambda future: future.set_result(answer["value"]))
            case "refused":
                error = error_of(answer["word"])(answer["message"])
                self._settle(answer["number"], lambda future: future.set_exception(error))
            case "ready" | "warmed" | "unloaded":
                self._ready = True
                self._may_draw.set()
                self._hear_more(answer)
            case "enlarging":
                if tell := self._told_of.get(answer["number"]):
                    tell(answer["done"], answer["total"])
            case "upscaler":
                self._scales[answer["path"], tuple(answer["identity"])] = answer["scale"]
            case "finishing":
                self._finishing = answer["job"]
            case _ if self._drawing is not None and answer["job"] == self._job:
                self._drawing.put_nowait(answer)

    def _settle(self, number: int, how: Callable[[asyncio.Future[Any]], None]) -> None:
        future = self._questions.pop(number, None)
        if future is not None and not future.done():
            how(future)

    def _ended(self, number: int, status: int) -> None:
        if number != self._starts:
            return
        was_ready, self._ready = self._ready, False
        if self._cluster is not None:
            self._may_draw.clear()
        child, self._child = self._child, None
        if child is not None:
            child.stop()
        self._cut_off(ChildLost("lost its worker") if status == LOST else ChildEnded(last_words(status, self._log)))
        if (was_ready or self._cluster is not None) and not self._closed:
            self.start()  # One that does not even start waits for the next job.
        self._hear_more({"answer": "ended", "folders": []})

    def _cut_off(self, error: ChildEnded) -> None:
        if self._drawing is not None:
            self._drawing.put_nowait(error)
        self._refuse(list(self._questions), error)

    def _refuse(self, asked: Iterable[int], error: ChildEnded) -> None:
        for number in asked:
            self._settle(number, lambda future: future.set_exception(error))
