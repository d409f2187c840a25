"""Signals that ask a process to end are treated like Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("SIGTERM", "SIGHUP", "SIGBREAK")


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM and its like, so that children are stopped and temp files removed.

    A signal that is ignored, as under `nohup`, stays ignored.
    """
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    changed = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> NoReturn:  # noqa: ARG001  (what `signal` calls it with)
    raise KeyboardInterrupt
