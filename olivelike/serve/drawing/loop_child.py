"""A child process whose answers are heard in the event loop that started it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from olivelike._json_child import JsonChild
from olivelike._untrusted import Json

_PIECE: Final = 1 << 16
"""Bytes that a pipe holds, as a rule."""


def call_soon(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *values: Any) -> None:
    """Call something in a loop, from any thread, unless that has ended and with it the server."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *values)


class LoopChild(JsonChild):
    """The parent's end of a child; `hear` and `end` are called in the running loop, which reads the pipe itself."""

    _is_read_there = True

    def _listen(self, hear: Callable[[Json], None], end: Callable[[int], None]) -> None:
        loop, output, rest = asyncio.get_running_loop(), self._process.stdout, b""
        assert output is not None

        def wait() -> None:
            call_soon(loop, end, self._process.wait())

        def read() -> None:
            nonlocal rest
            data = os.read(output.fileno(), _PIECE)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                hear(json.loads(line))
            if not data:
                loop.remove_reader(output)
                output.close()
                self._fell_silent.set()
                threading.Thread(target=wait, daemon=True).start()

        try:
            loop.add_reader(output, read)
        except NotImplementedError:  # Windows' loop reads no pipes.
            self._is_read_there = False
            super()._listen(partial(call_soon, loop, hear), partial(call_soon, loop, end))

    def _close_output(self) -> None:
        if not self._is_read_there:  # Else the loop does so at its end, which has come.
            super()._close_output()
