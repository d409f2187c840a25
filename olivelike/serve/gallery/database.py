"""SQLite files that survive a killed process, and are set aside if they are damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path


def open_database(
    path: Path, schema: str, check: Callable[[sqlite3.Connection], None] = lambda _: None
) -> tuple[sqlite3.Connection, bool]:
    """Open a database, and make its tables.

    A file is damaged too if its tables have other columns, or `check` raises `sqlite3.DatabaseError` for what is in it.

    Each statement is a transaction. What is committed survives the process; the last ones of a power loss may be gone.
    Raises `sqlite3.Error` if there can be none, as on a full disk.

    Returns:
        The connection, and whether a damaged file of the name was set aside as `NAME.damaged`.
    """
    try:
        return _open(path, schema, check), False
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) or not path.exists():
            raise
    path.replace(path.with_name(f"{path.name}.damaged"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return _open(path, schema, check), True


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
