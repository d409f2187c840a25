"""Turns what the operating system reports into errors that say what, where, why, and what to do."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from olivelike.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ELSEWHERE = "put the store elsewhere with --cache-dir"
_REMEDIES = {
    errno.ENOSPC: f"Free space there (`olivelike cache gc` drops old results), or {_ELSEWHERE}.",
    errno.EDQUOT: f"Free space there (`olivelike cache gc` drops old results), or {_ELSEWHERE}.",
    errno.EROFS: f"Make it writable, or {_ELSEWHERE}.",
    errno.EACCES: f"Make it writable, or {_ELSEWHERE}.",
    errno.EPERM: f"Make it writable, or {_ELSEWHERE}.",
    errno.EIO: f"The disk reports an error: check it, or {_ELSEWHERE}.",
}

MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
"""Error numbers of a read that mean: there is no such entry."""

UNREADABLE = frozenset({errno.EIO, errno.EISDIR})
"""Error numbers of a read that mean: the entry is damaged."""


@contextmanager
def explained(path: Path, action: str = "write to") -> Iterator[None]:
    """Raise `StoreError` for an `OSError` inside the block.

    Args:
        path: the place to name where the operating system names none.
        action: what was tried, as in "can't write to the store".

    Raises:
        StoreError: with the path, the reason and a remedy.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or path
        reason = error.strerror or str(error)
        remedy = _REMEDIES.get(error.errno or 0, f"Look at that path, or {_ELSEWHERE}.")
        raise StoreError(f"can't {action} the store: {place}: {reason}. {remedy}") from error
