"""File locks that die with their process. They spare work; correctness never rests on them."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from filelock import BaseFileLock


class KeyLock(Protocol):
    """A lock that is held."""

    def release(self) -> None:
        """Give it back."""


def try_lock(path: Path) -> BaseFileLock | None:
    """Return the lock, held, or `None` if another process holds it; the folder must exist."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    # A sweeper may have removed the file between our open and our lock: such a lock guards no name.
    if path.exists():
        return lock
    lock.release()
    return None


def drop_lock(path: Path, remove: Callable[[Path], None]) -> None:
    """Remove the file of a lock, unless somebody holds it."""
    lock = try_lock(path)
    if lock is None:
        return
    try:
        if os.name == "posix":
            remove(path)  # while it is held, so that nobody else can take it in between
    finally:
        lock.release()
    if os.name != "posix":  # A file that is open can't be removed there, be it by us or by the next holder.
        with suppress(PermissionError):
            remove(path)


@contextmanager
def held(
    path: Path, on_wait: Callable[[], None] | None = None, *, timeout: float = float("inf")
) -> Iterator[None]:
    """Hold the lock during the block.

    Args:
        path: the lock's file; its folder must exist.
        on_wait: called once if another holder has it; raising from it gives up.
        timeout: seconds to wait for another holder.

    Raises:
        TimeoutError: if the lock stays taken.
    """
    import time

    end = time.monotonic() + timeout
    while (lock := try_lock(path)) is None:
        if on_wait is not None:
            on_wait()
            on_wait = None
        if time.monotonic() >= end:
            raise TimeoutError(f"{path} is held by another process")
        time.sleep(0.02)
    try:
        yield
    finally:
        lock.release()
