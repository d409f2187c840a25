"""Signals while pictures are made: they end what engines compute within a second, and wait for files."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

from olivelike.errors import Interrupted
from olivelike.runtime.sessions.session import ENGINE_CALLS

_GRACE: Final = 0.7
"""Seconds that an engine has to return: it looks up between two operators, of which one can take long."""
_ENDING: Final = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
_writing = False
"""Whether work is going on that must not be cut in two."""


@contextlib.contextmanager
def signals_end_engines(last_words: Callable[[], None]) -> Iterator[None]:
    """End engines' calls when a signal asks the process to end, and the process if they don't return.

    Python's own handlers run when such a call has returned. A second signal ends the process at once, unless a file
    is being written. `last_words` are called in another thread, before the process ends without returning here.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread gets signals.
        return
    ours, pythons = socket.socketpair()
    with ours, pythons, ENGINE_CALLS.watch():
        pythons.setblocking(False)
        watcher = threading.Thread(target=_watch, args=(ours, last_words), name="interruptions", daemon=True)
        before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        watcher.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            pythons.send(b"\0")  # No signal has this number.
            watcher.join()


def _watch(signals: socket.socket, last_words: Callable[[], None]) -> None:
    """Read the numbers of signals as they come, until one is 0."""
    came = 0
    while True:
        ready = select.select([signals], [], [], _GRACE if came else None)[0]
        if not ready:
            _leave(last_words)
            continue
        for number in signals.recv(64):
            if number == 0:
                return
            if number in _ENDING and signal.getsignal(number) is not signal.SIG_IGN:
                came += 1
        if came:
            ENGINE_CALLS.end()
        if came > 1:
            _leave(last_words)


def _leave(last_words: Callable[[], None]) -> None:
    """End the process, unless what runs is Python's, or a file is being written."""
    if not ENGINE_CALLS.any or _writing:
        return
    last_words()
    os._exit(Interrupted.exit_code)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that ask the process to end wait until the block is done.

    Raises `KeyboardInterrupt` at the end of the block, if one came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread gets signals.
        return
    global _writing
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, lambda received, _: came.append(received))
    _writing = True
    try:
        yield
    finally:
        _writing = False
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
