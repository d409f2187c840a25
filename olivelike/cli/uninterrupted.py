"""Short stretches of work that an interruption must not cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")

busy = False
"""Whether such work is going on."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that ask the process to end wait until the block is done.

    Raises:
        KeyboardInterrupt: at the end of the block, if one came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread gets signals.
        return
    global busy
    came: list[int] = []
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, lambda received, _: came.append(received))
    busy = True
    try:
        yield
    finally:
        busy = False
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
