"""SQLite files that survive a killed process, and are set aside if they are damaged."""

from __future__ import annotations

import logging
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from olivelike._files import FULL

_LOG: Final = logging.getLogger(__name__)
_CACHE: Final = 256
"""KiB of pages that a connection keeps; an eighth of SQLite's, since what is looked for is mostly the newest."""
_WAL_MAGIC: Final = (0x377F0682, 0x377F0683)
_WAL_HEADER: Final = struct.Struct(">IIIIIIII")
"""Magic, version, bytes of a page, number, two salts, two checksums: https://www.sqlite.org/fileformat2.html#walformat."""
_WAL_FRAME: Final = struct.Struct(">IIIIII")
"""Page, pages of the database if it ends a transaction, two salts, two checksums; the page follows."""


def open_database(
    path: Path, schema: str, check: Callable[[sqlite3.Connection], None] = lambda _: None
) -> tuple[sqlite3.Connection, bool]:
    """Open a database, and make its tables.

    A file is damaged too if its tables have other columns, or `check` raises `sqlite3.DatabaseError` for what is in it.

    Each statement is a transaction. What is committed survives the process; the last ones of a power loss may be gone.
    Raises `sqlite3.Error` or `OSError` if there can be none, as on a full disk.

    Returns:
        The connection, and whether a damaged file was set aside: the database or its log, as `NAME.damaged`.
    """
    wal = path.with_name(f"{path.name}-wal")
    log = wal.read_bytes() if wal.exists() else b""
    try:
        connection, has_lost = _open(path, schema, check, log)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) or not path.exists():
            raise
    else:
        if not has_lost:
            return connection, False
        # What is whole in it, SQLite has taken; the rest is kept for people.
        wal.with_name(f"{wal.name}.damaged").write_bytes(log)
        _LOG.warning("%s was damaged; it is set aside as %s.damaged, and the last entries are missing", wal, wal.name)
        return connection, True
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    if wal.exists():  # By this name, SQLite reads them together.
        wal.replace(aside.with_name(f"{aside.name}-wal"))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    _LOG.warning("%s was damaged; it is set aside as %s, and a new one begun", path, aside.name)
    return _open(path, schema, check, b"")[0], True


def _has_lost(connection: sqlite3.Connection, log: bytes) -> bool:
    """Tell whether a write-ahead log had more than SQLite found whole when it opened the database.

    SQLite takes a log up to the first page whose checksum is wrong, and says nothing of the rest.
    """
    if len(log) < _WAL_HEADER.size:
        return False
    magic, _, page, _, *salts, _, _ = _WAL_HEADER.unpack_from(log)
    if magic not in _WAL_MAGIC or page < 512:
        return True
    starts = range(_WAL_HEADER.size, len(log) - page - _WAL_FRAME.size + 1, page + _WAL_FRAME.size)
    frames = [_WAL_FRAME.unpack_from(log, start) for start in starts]
    ends = [number for number, (_, pages, *found, _, _) in enumerate(frames, 1) if pages and found == salts]
    try:
        _, whole, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.OperationalError:  # A full disk: it is looked at when next opened.
        return False
    return int(whole) < max(ends, default=1 if frames else 0)


def is_full(error: Exception) -> bool:
    """Tell whether a file or a database can't be written because the disk has no room."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    return isinstance(error, OSError) and error.errno in FULL


def _open(
    path: Path, schema: str, check: Callable[[sqlite3.Connection], None], log: bytes
) -> tuple[sqlite3.Connection, bool]:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA cache_size=-{_CACHE}")
        has_lost = _has_lost(connection, log)  # Before anything is written.
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError(f"{path}: is damaged")
        _require_columns(connection, schema)
        connection.executescript(schema)
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection, has_lost


def _require_columns(connection: sqlite3.Connection, schema: str) -> None:
    columns = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(schema)
        wanted = set(empty.execute(columns))
    there = {tuple(row) for row in connection.execute(columns)}
    tables = {table for table, _ in there}
    if there != {(table, column) for table, column in wanted if table in tables}:
        raise sqlite3.DatabaseError("its tables have other columns")
