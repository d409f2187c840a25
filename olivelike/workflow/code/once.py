"""Things read once where several workflows are planned together: code as it is when it is first looked at."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar, cast

T = TypeVar("T")
_known: dict[Hashable, Any] | None = None
_guard = threading.RLock()
"""One thread reads at a time; what it reads may ask too."""


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Keep what `once` is asked for, in all threads, until the block ends."""
    global _known
    before = _known
    _known = {} if before is None else before
    try:
        yield
    finally:
        _known = before


def once(question: Hashable, read: Callable[[], T]) -> T:
    """Return what `read` does, or did for the same question in this block."""
    known = _known
    if known is None:
        return read()
    with _guard:
        if question not in known:
            known[question] = read()
        return cast("T", known[question])
