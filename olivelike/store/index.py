"""Small JSON hints in a diskcache database: forgotten at any time without loss.

diskcache is used through its public interface alone. A value is text: JSON with the hash of itself and its key, so a
flipped bit is a miss. A database that is deleted, damaged or of another make is moved aside, and a new one begun. All
that is asked of it runs in a thread, since diskcache waits minutes for whoever has locked a database.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskcache import Cache, Disk, Timeout

from olivelike._files import file_identity, held
from olivelike.digest import canonical_json, digest_file, digest_json
from olivelike.errors import SourceError
from olivelike.store.folder import StoreFolder, is_digest

if TYPE_CHECKING:
    import os

_BUSY_SECONDS = 5.0
"""How long all that a process asks of an index waits for another that has locked it."""
_GLANCE_SECONDS = 0.1
"""How long one question waits after that."""
_POLL_SECONDS = 0.05
_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 60,
    "disk_min_file_size": 1 << 60,  # no value gets a file of its own
    "sqlite_journal_mode": "delete",  # readers of a write-ahead log create files
    "sqlite_mmap_size": 0,  # a truncated file that is mapped kills the process
    "sqlite_synchronous": 0,  # the hash in each row finds what a power loss tore
}
_DAMAGE = (sqlite3.Error, sqlite3.Warning, OSError, AttributeError, KeyError, TypeError, ValueError)
"""All that diskcache raises on a database whose tables hold something else."""
_SETTLED_SECONDS = 2.0
"""A file changed more recently can change again without a visible change of its times."""
_ATTEMPTS = 3


class Index:
    """The hints of one store. No operation of it fails: what can't be kept is forgotten."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._patience = _BUSY_SECONDS
        self._guard = threading.Lock()
        self._cache: Cache | None = None
        self._waiting: threading.Thread | None = None
        """The thread that asked last and has no answer yet."""

    def recall(self, namespace: str, key: str) -> Any:
        """Return what was remembered, or `None`."""
        if not self._folder.fs.is_folder(self._folder.index):
            return None
        text = self._ask(lambda cache: cache.get(_key(namespace, key)))
        try:
            check, value = json.loads(text or "")
            return value if check == digest_json([namespace, key, value]) else None
        except (ValueError, TypeError, RecursionError):
            return None

    def remember(self, namespace: str, key: str, value: Any) -> None:
        """Keep a JSON value, if the index can be written."""
        if not self._folder.writable or self._patience <= 0:
            return
        text = json.dumps([digest_json([namespace, key, value]), value])
        try:
            with held(self._folder.lock_path("index"), timeout=self._patience):
                for _ in range(2):  # a damaged database is gone after the first time
                    self._folder.fs.make_folder(self._folder.index, 0o700)
                    self._folder.fs.set_private(self._folder.index)
                    if self._ask(lambda cache: cache.set(_key(namespace, key), text)) or self._patience <= 0:
                        return
        except TimeoutError:
            self._patience = 0.0
        except OSError:  # a read-only or full disk
            return

    def file_digest(self, path: Path) -> str:
        """Return the SHA-256 of a file, from memory if it is known by its identity and times, and unchanged.

        Raises `SourceError` if the file can't be read, or keeps changing.
        """
        try:
            for _ in range(_ATTEMPTS):
                before = path.stat()
                known = self.recall("file_digest", _identity(before))
                if isinstance(known, str) and is_digest(known):
                    return known
                started = time.time()
                digest = digest_file(path)
                if _identity(path.stat()) == _identity(before):
                    if started - max(before.st_mtime, before.st_ctime) >= _SETTLED_SECONDS:
                        self.remember("file_digest", _identity(before), digest)
                    return digest
        except OSError as error:
            raise SourceError(f"can't read {path}: {error.strerror or error}") from error
        raise SourceError(f"{path} changes while it is read: wait until it is complete, then run again")

    def _ask(self, question: Callable[[Cache], Any]) -> Any:
        """Return what the database answers; `None` if it is damaged, and now forgotten, or stays locked."""
        answers: list[Any] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                with self._opened() as cache:  # closed after each question, so that anybody may remove the file
                    answers.append(question(cache))
            except (*_DAMAGE, Timeout) as error:
                errors.append(error)

        with self._guard:
            if self._waiting is not None and self._waiting.is_alive():
                return None
            self._waiting = threading.Thread(target=ask, daemon=True)
            self._waiting.start()
            end = time.monotonic() + max(self._patience, _GLANCE_SECONDS)
            while self._waiting.is_alive() and time.monotonic() < end:
                self._waiting.join(_POLL_SECONDS)  # in slices, which Ctrl-C ends on every system
            if errors and not _is_passing(errors[0]):
                self._cache = None
                self._folder.set_aside(self._folder.index)  # the next `remember` makes a new one
            elif not answers:
                self._patience = 0.0
        return answers[0] if answers else None

    def _opened(self) -> Cache:
        if self._cache is None:
            place = self._folder.index if self._folder.writable else self._copied()
            cache = Cache(str(place), disk=TextDisk, **_SETTINGS)
            if cache.directory != str(place):
                raise sqlite3.DataError("the index names another folder as its own")
            self._cache = cache
        return self._cache

    def _copied(self) -> Path:
        """Return a copy of an index that must not be changed, as opening it would."""
        place = Path(tempfile.mkdtemp(prefix="olivelike-index-"))
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        for name in self._folder.fs.names(self._folder.index):
            shutil.copyfile(self._folder.index / name, place / name)  # without modes: opening it writes to it
        return place


class TextDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """diskcache's storage layer, narrowed to text in the row of the database itself.

    Its own unpickles rows of one mode and keys with `raw=0`, under its `JSONDisk` too (CVE-2025-69872), and removes
    files that rows name. So each of its public methods is narrowed here: such a row is a damaged database.
    """

    def __init__(self, directory: str, **_stored_settings: object) -> None:
        """Take the folder; settings that a database holds for its disk are ignored."""
        super().__init__(directory, min_file_size=_SETTINGS["disk_min_file_size"])

    def put(self, key: object) -> tuple[str, bool]:
        """Return a text key as it is stored."""
        if not isinstance(key, str):
            raise TypeError(f"an index key is text, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str:
        """Return a stored key, which must be text."""
        if raw != 1 or not isinstance(key, str):
            raise sqlite3.DataError("the index holds a key that is not text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> Any:
        """Return the row of a text: size, mode, file name, and what the row holds."""
        if read or not isinstance(value, str):
            raise TypeError("an index value is text")
        return super().store(value, read, key)

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> str:
        """Return the text of a row, which must be as `store` gives it."""
        if not isinstance(value, str) or read or self.store(value, read)[1:] != (mode, filename, value):
            raise sqlite3.DataError("the index holds a value that is not text")
        return value

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:  # noqa: ARG002
        """Refuse: no value of the index has its own file."""
        raise TypeError("index values have no files")

    def remove(self, file_path: object) -> None:
        """Remove nothing: a file that a row names is not the index's."""


def _key(namespace: str, key: str) -> str:
    return canonical_json([namespace, key]).decode()


def _identity(status: os.stat_result) -> str:
    return "-".join(map(str, file_identity(status)))


def _is_passing(error: Exception) -> bool:
    """Tell whether the database may be sound: it is busy, read-only or on a full disk."""
    codes = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL}
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return isinstance(error, (Timeout, OSError)) or code & 0xFF in codes
