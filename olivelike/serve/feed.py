"""Events of jobs, for any number of listeners."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from olivelike.serve.views import Event

_MOST = 10_000
"""Events that wait for a listener; one that is further behind has left, or sleeps."""


class Feed:
    """Channel that events are published on; used in one event loop alone."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._closed = False

    @property
    def shows_previews(self) -> bool:
        """Whether anybody looks at previews."""
        return any(listener.previews for listener in self._listeners)

    def publish(self, event: Event) -> None:
        """Hand an event to all whom it concerns."""
        for listener in tuple(self._listeners):
            if listener.job is None or listener.job == event.get("job"):
                listener.put(event)

    def close(self) -> None:
        """Let all listeners come to their end."""
        self._closed = True
        for listener in tuple(self._listeners):
            listener.end()

    @contextmanager
    def listening(self, job: str | None = None, *, previews: bool = False) -> Iterator[Listener]:
        """Listen from now on, to one job or all."""
        listener = Listener(job, previews=previews)
        self._listeners.add(listener)
        if self._closed:
            listener.end()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


class Listener:
    """One who listens; a step that it has not seen yet is replaced by the next one, everything else is kept."""

    def __init__(self, job: str | None, *, previews: bool) -> None:
        self.job = job
        self.previews = previews
        self._waiting: deque[Event] = deque()
        self._came = asyncio.Event()
        self._ended = False

    def put(self, event: Event) -> None:
        """Add an event, unless it has come to its end."""
        if self._ended:
            return
        last = self._waiting[-1] if self._waiting else {}
        if event["type"] == "step" and last.get("type") == "step" and last["job"] == event["job"]:
            # What it shows is kept: not every step has a preview, and the first alone has the prompts.
            event = {**{key: last[key] for key in ("preview", "prompts") if key in last}, **event}
            self._waiting.pop()
        if not self.previews:
            event = {key: value for key, value in event.items() if key != "preview"}
        self._waiting.append(event)
        if len(self._waiting) > _MOST:
            self.end()
        self._came.set()

    def end(self) -> None:
        """Let it come to its end, behind what waits."""
        self._ended = True
        self._came.set()

    async def events(self) -> AsyncIterator[Event]:
        """Return the events as they come, until the feed is closed."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._ended:
                return
            self._came.clear()
            await self._came.wait()
