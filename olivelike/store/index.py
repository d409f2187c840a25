"""Small JSON hints in a diskcache database: forgotten at any time without loss.

Reading asks SQLite directly, read-only: opening diskcache writes its settings and costs 20 ms. Writing goes
through diskcache. Each value is stored with the hash of itself and its key, so a flipped bit is a miss.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from olivelike.digest import canonical_json, digest_json
from olivelike.store.locks import held

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from olivelike.store.publisher import Publisher

_QUERY = "SELECT value FROM Cache WHERE key = ? AND raw = 1 AND mode = 1 AND filename IS NULL"
_BUSY_SECONDS = 5.0
"""How long all that a process asks of an index waits for another that has locked it."""
_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 1 << 60,
    "sqlite_journal_mode": "delete",  # readers of a write-ahead log create files
    "sqlite_mmap_size": 0,  # a truncated file that is mapped kills the process
    "sqlite_synchronous": 0,  # the hash in each row finds what a power loss tore
}


class Index:
    """The hints of one store. No operation of it fails: what can't be kept is forgotten."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._folder = publisher.layout.index
        self._database = self._folder / "cache.db"
        self._patience = _BUSY_SECONDS

    def recall(self, namespace: str, key: str) -> Any:
        """Return what was remembered, or `None`."""
        import sqlite3

        try:
            text = self._select(_key(namespace, key))
            return None if text is None else _unwrap(namespace, key, text)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            self._rebuild_after(error)
            return None

    def remember(self, namespace: str, key: str, value: Any) -> None:
        """Keep a JSON value, if the index can be written."""
        import sqlite3

        if not self._publisher.writable or self._patience <= 0:
            return
        row_key, row_value = _key(namespace, key), _wrap(namespace, key, value)
        try:
            with self._lock():
                self._set(row_key, row_value)
        except TimeoutError:
            self._patience = 0.0
        except OSError:  # a read-only or full disk
            return
        except (sqlite3.Error, sqlite3.Warning, AttributeError, KeyError, TypeError, ValueError) as error:
            # All that diskcache raises on a database whose tables hold something else.
            self._rebuild_after(error)

    def _select(self, key: str) -> str | None:
        import sqlite3

        if not self._database.exists():
            return None
        address = f"{self._database.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(address, uri=True, timeout=self._patience)
        try:
            row = connection.execute(_QUERY, (key,)).fetchone()
        finally:
            connection.close()
        if row is not None and not isinstance(row[0], str):
            raise sqlite3.DataError("the index holds a value that is not text")
        return row[0] if row else None

    def _set(self, key: str, value: list[Any]) -> None:
        from diskcache import Cache, Timeout

        from olivelike.store.json_disk import JsonDisk

        self._publisher.fs.make_folder(self._folder, 0o700)
        self._publisher.fs.set_private(self._folder)
        self._require_unlocked()
        cache = Cache(str(self._folder), timeout=self._patience, disk=JsonDisk, **_SETTINGS)
        try:
            cache.set(key, value)
        except Timeout as error:
            raise TimeoutError("the index is busy") from error
        finally:
            cache.close()

    def _require_unlocked(self) -> None:
        """Wait for who has locked the database; diskcache would wait a minute for each of its settings.

        Raises:
            TimeoutError: if it stays locked.
        """
        import sqlite3

        if not self._database.is_file():
            return
        connection = sqlite3.connect(self._database, timeout=self._patience, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            raise TimeoutError("the index is busy") from error
        finally:
            connection.close()

    def _rebuild_after(self, error: Exception) -> None:
        """Move a damaged database aside; the next `remember` makes a new one."""
        if _is_passing(error):
            self._patience = 0.0
            return
        if not self._publisher.writable:
            return
        try:
            with self._lock():
                self._publisher.set_aside(self._folder)
        except OSError:
            return

    def _lock(self) -> AbstractContextManager[None]:
        path = self._publisher.layout.lock("index")
        self._publisher.fs.make_folder(path.parent)
        return held(path, timeout=self._patience)


def _key(namespace: str, key: str) -> str:
    return canonical_json([namespace, key]).decode()


def _wrap(namespace: str, key: str, value: Any) -> list[Any]:
    return [digest_json([namespace, key, value]), value]


def _unwrap(namespace: str, key: str, text: str) -> Any:
    try:
        check, value = json.loads(text)
        return value if check == digest_json([namespace, key, value]) else None
    except (ValueError, TypeError, RecursionError):
        return None


def _is_passing(error: Exception) -> bool:
    """Tell whether the database may be sound: it is busy, read-only or on a full disk."""
    import sqlite3

    return _is_busy(error) or _code(error) in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL}


def _is_busy(error: Exception) -> bool:
    import sqlite3

    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _code(error: Exception) -> int:
    import sqlite3

    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
