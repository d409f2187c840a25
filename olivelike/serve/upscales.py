"""Enlargements that run: of one picture or several for a client, with how far they are, until they end or are ended.

They are forgotten with the server; what they made is in the gallery.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from olivelike._untrusted import Json
from olivelike.serve.views import PictureView, QueueFull

_MOST: Final = 16
"""Enlargements that wait or run, of all clients."""
_MOST_OWN: Final = 8
"""Those of one client, so that there is room for others."""
_KEPT: Final = 32
"""Those that have ended and are still told of."""


@dataclass(eq=False)
class Upscale:
    """Pictures that are enlarged one after the other."""

    client: str
    total: int
    uploads: Collection[str] = ()
    """Pictures that were sent, which stay until it has ended."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    done: int = 0
    share: float = 0.0
    """Of the picture that is enlarged now."""
    began: float = field(default_factory=time.monotonic)
    pictures: list[PictureView] = field(default_factory=list)
    """Those that are in the gallery."""
    refused: list[Json] = field(default_factory=list)
    """Those that can't be enlarged: `upload`, and `error`, which says why."""
    error: str | None = None
    task: asyncio.Task[None] | None = None

    def tell(self, done: int, total: int) -> None:
        """Take how many of its tiles a picture has."""
        self.share = done / total

    def next(self) -> None:
        """Go on to the next picture."""
        self.done, self.share = self.done + 1, 0.0

    @property
    def progress(self) -> float:
        """Share of all that is done."""
        return min(1.0, (self.done + self.share) / self.total)

    @property
    def eta(self) -> float | None:
        """Seconds that it takes still, once that can be told."""
        done = self.progress
        return (time.monotonic() - self.began) * (1 - done) / done if done and self.state == "running" else None

    def view(self) -> Json:
        """Return it as clients see it."""
        return {
            "id": self.id, "state": self.state, "total": self.total, "done": self.done, "progress": self.progress,
            "eta_seconds": self.eta, "pictures": [one.model_dump(mode="json") for one in self.pictures],
            "refused": self.refused, "error": self.error,
        }  # fmt: skip

    def cancel(self) -> None:
        """End it before its next tile; what is done stays."""
        if self.state == "running" and self.task is not None:
            self.task.cancel()

    def end(self, task: asyncio.Task[None]) -> None:
        """Take how its task has ended."""
        if task.cancelled():
            self.state = "cancelled"
        elif error := task.exception():
            self.state, self.error = "failed", str(error)
        else:
            self.state = "done"

    async def finished(self) -> None:
        """Wait until it has ended; raise what it was refused by."""
        assert self.task is not None
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()


class Upscales:
    """All that run, and the last that have ended."""

    def __init__(self) -> None:
        self._all: dict[str, Upscale] = {}

    def of(self, client: str) -> list[Upscale]:
        """Return a client's, the oldest first."""
        return [one for one in self._all.values() if one.client == client]

    def running(self, client: str | None = None) -> Iterator[Upscale]:
        """Yield those that run; of one client, or all."""
        return (one for one in self._all.values() if one.state == "running" and client in (None, one.client))

    def start(
        self,
        client: str,
        total: int,
        work: Callable[[Upscale], Coroutine[Any, Any, None]],
        uploads: Collection[str] = (),
    ) -> Upscale:
        """Begin work on so many pictures, which tells how far it is. Raises `QueueFull` if too many run."""
        for who, most in ((client, _MOST_OWN), (None, _MOST)):
            if sum(1 for _ in self.running(who)) >= most:
                raise QueueFull(most, 1, "enlargements")
        one = Upscale(client, total, uploads)
        ended = [other.id for other in self._all.values() if other.state != "running"]
        for gone in ended[: max(0, len(ended) - _KEPT)]:
            del self._all[gone]
        self._all[one.id] = one
        one.task = asyncio.create_task(work(one), name="upscaling")
        one.task.add_done_callback(one.end)
        return one

    def close(self) -> None:
        """End all."""
        for one in self.running():
            one.cancel()
