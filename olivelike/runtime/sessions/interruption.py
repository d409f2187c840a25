"""Ending what engines are doing, from another thread than the one that waits for them.

A thread in an engine's code sees no signal until that code returns, which for a large picture takes hours.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class EngineCalls:
    """The calls of engines that are in progress."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []
        self.watched = False
        """Whether anybody may end them: only then do they have to be made so that this can be done."""
        self.ended = False
        """Whether they were ended, so that what an engine raises is no failure of its own."""

    @contextlib.contextmanager
    def in_progress(self, end: Callable[[], object]) -> Iterator[None]:
        """Have a call listed while the block runs.

        Args:
            end: makes the engine return early with an error; called in another thread.
        """
        with self._lock:
            self._ends.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)

    @property
    def any(self) -> bool:
        """Whether a call is in progress."""
        return bool(self._ends)

    def end(self) -> None:
        """Ask all of them to return early."""
        with self._lock:
            self.ended = True
            for end in self._ends:
                end()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Let calls be made that can be ended while the block runs."""
        self.watched, self.ended = True, False
        try:
            yield
        finally:
            self.watched = self.ended = False


ENGINE_CALLS = EngineCalls()
"""Those of this process, which is what signals are for."""
