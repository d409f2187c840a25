"""Look of numbers on a terminal."""

from __future__ import annotations

import sys

from olivelike._text import count, duration, roughly
from olivelike.errors import Interrupted

_SHORT = 10.0
"""Seconds below which a time is shown as it was."""


def expected(seconds: float | None, unknown: int) -> str:
    """Return how long nodes will take, in words.

    Args:
        seconds: Estimated wall time of those whose time is known; `None` if there are none.
        unknown: How many there are whose time nothing tells.
    """
    if seconds is None:
        return "time unknown: nothing like it has run here"
    more = f" and {count(unknown, 'node')} of unknown time" if unknown else ""
    return f"{roughly(seconds)}{more}"


def usually(seconds: float) -> str:
    """Return how long a node took before, as exact as it is of use."""
    return duration(seconds) if seconds < _SHORT else roughly(seconds)


def terminal_width() -> int | None:
    """Return the columns of the terminal that is written to; `None` if it is none."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def fitted(line: str) -> str:
    """Return a line as a terminal shows it best: continued with an indent where it is too long; unchanged elsewhere."""
    width = terminal_width()
    if width is None:
        return line
    import textwrap

    parts = textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(parts)


def message(error: BaseException | None) -> str | None:
    """Return an error's message, or its kind if it has none; `None` without one."""
    return None if error is None else str(error) or type(error).__name__


def ended(error: BaseException | None) -> str:
    """Return the status of what ended by an error."""
    return "interrupted" if isinstance(error, (KeyboardInterrupt, Interrupted)) else "failed"
