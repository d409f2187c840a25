"""SQLite files that survive a killed process, and are set aside if they are damaged."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger("olivelike.serve")
_LEAST_LOG: Final = 32 + 24 + 512
"""Bytes of a log with one change, of the smallest page."""


def open_database(
    path: Path, schema: str, check: Callable[[sqlite3.Connection], None] = lambda _: None
) -> tuple[sqlite3.Connection, bool]:
    """Open a database, and make its tables.

    A file is damaged too if its tables have other columns, or `check` raises `sqlite3.DatabaseError` for what is in it.

    So is its log of the last changes, `NAME-wal`, where SQLite finds no change in it; without it the file is whole, but
    lacks those. Each statement is a transaction. What is committed survives the process; the last ones of a power loss
    may be gone.
    Raises `sqlite3.Error` if there can be none, as on a full disk.

    Returns:
        The connection, and whether a damaged file of the name was set aside as `NAME.damaged`, or `NAME-wal.damaged`.
    """
    log = path.with_name(f"{path.name}-wal")
    there = path.exists() and log.is_file() and log.stat().st_size > _LEAST_LOG
    lost = there and not _has_changes(path, log)
    if lost:
        _set_aside(log)
    try:
        return _open(path, schema, check), lost
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) or not path.exists():
            raise
    _set_aside(path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return _open(path, schema, check), True


def _set_aside(path: Path) -> None:
    kept = path.with_name(f"{path.name}.damaged")
    _LOG.warning("%s was damaged, and is kept as %s; what it alone held is lost", path, kept.name)
    path.replace(kept)


def _has_changes(path: Path, log: Path) -> bool:
    """Tell whether SQLite finds changes in a log, looked at as a copy: it empties one in which it finds none."""
    with tempfile.TemporaryDirectory(prefix="olivelike-") as folder:
        copy = Path(folder, path.name)
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name(log.name))
        with closing(sqlite3.connect(copy)) as connection:
            try:
                return bool(connection.execute("PRAGMA wal_checkpoint").fetchone()[1] > 0)
            except sqlite3.DatabaseError:
                return True  # The file itself is damaged, which is found as it is opened.


def _open(path: Path, schema: str, check: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError(f"{path}: is damaged")
        _require_columns(connection, schema)
        connection.executescript(schema)
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_columns(connection: sqlite3.Connection, schema: str) -> None:
    columns = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(schema)
        wanted = set(empty.execute(columns))
    there = {tuple(row) for row in connection.execute(columns)}
    tables = {table for table, _ in there}
    if there != {(table, column) for table, column in wanted if table in tables}:
        raise sqlite3.DatabaseError("its tables have other columns")
