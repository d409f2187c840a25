"""Digests of big files outside the store: hashed once, remembered by the file's identity and times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from olivelike.digest import digest_file
from olivelike.errors import SourceError
from olivelike.store.layout import is_digest

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from olivelike.store.index import Index

_NAMESPACE = "file_digest"
_SETTLED_SECONDS = 2.0
"""A file changed more recently can change again without a visible change of its times."""
_ATTEMPTS = 3


def file_digest(path: Path, index: Index) -> str:
    """Return the SHA-256 of a file, from memory if the file is known and unchanged.

    Raises:
        SourceError: if the file can't be read, or keeps changing.
    """
    try:
        for _ in range(_ATTEMPTS):
            before = path.stat()
            known = index.recall(_NAMESPACE, _identity(before))
            if isinstance(known, str) and is_digest(known):
                return known
            started = time.time()
            digest = digest_file(path)
            if _identity(path.stat()) == _identity(before):
                if started - max(before.st_mtime, before.st_ctime) >= _SETTLED_SECONDS:
                    index.remember(_NAMESPACE, _identity(before), digest)
                return digest
    except OSError as error:
        raise SourceError(f"can't read {path}: {error.strerror or error}") from error
    raise SourceError(f"{path} changes while it is read: wait until it is complete, then run again")


def _identity(status: os.stat_result) -> str:
    parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return "-".join(map(str, parts))
