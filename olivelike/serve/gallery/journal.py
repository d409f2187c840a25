"""Jobs, as they survive the server: what was asked for, how far it is, and how it ended."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from olivelike._untrusted import Json
from olivelike.errors import SourceError
from olivelike.serve.gallery.database import open_database
from olivelike.serve.orders import Order
from olivelike.serve.views import JobState

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, kind TEXT NOT NULL, client TEXT NOT NULL,
    state TEXT NOT NULL, created REAL NOT NULL, started REAL, finished REAL, asked TEXT NOT NULL, plan TEXT NOT NULL,
    folder TEXT, first INTEGER, error TEXT, found TEXT
);
CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state);
CREATE TABLE IF NOT EXISTS waiting (place INTEGER PRIMARY KEY, jobs TEXT NOT NULL);
"""
_KEPT: Final = 20_000
"""Jobs that are remembered, those that have not ended beside them."""


@dataclass(frozen=True)
class JobRow:
    """A job in the journal."""

    id: str
    kind: Literal["pictures", "run"]
    client: str
    state: JobState
    created: float
    """Seconds since 1970."""
    asked: Json
    """The order, or what a run was asked for."""
    plan: Json
    """Facts found out before it was queued."""
    started: float | None = None
    finished: float | None = None
    folder: str | None = None
    """Folder of its pictures, below the gallery."""
    first: int | None = None
    """Number of its first picture's file there."""
    error: Json | None = None
    found: Json | None = None
    """Findings of a run."""


_COLUMNS: Final = tuple(field.name for field in fields(JobRow))
_JSON: Final = frozenset({"asked", "plan", "error", "found"})


class Journal:
    """The jobs of a gallery."""

    def __init__(self, path: Path) -> None:
        self._database, self.was_damaged = open_database(path, _SCHEMA, _check_rows)
        self._waiting: list[str] | None = None
        self._unwritten: dict[str, Json] = {}
        """Changes of jobs that a full disk keeps from being written, until the next one is."""
        self._database.execute(
            "DELETE FROM jobs WHERE state IN ('done', 'failed', 'cancelled') AND number <= "
            "(SELECT max(number) FROM jobs) - ?", (_KEPT,)
        )  # fmt: skip

    def add(self, job: JobRow) -> None:
        """Write a new job down."""
        marks = ", ".join("?" * len(_COLUMNS))
        values = [_written(name, getattr(job, name)) for name in _COLUMNS]
        self._database.execute(f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608

    def update(self, job: str, **changes: Any) -> None:
        """Write down what has changed of a job; what the disk refuses is remembered, and written with the next."""
        self._unwritten.setdefault(job, {}).update(changes)
        with contextlib.suppress(sqlite3.OperationalError):
            for one, values in list(self._unwritten.items()):
                places = ", ".join(f"{name} = ?" for name in values)
                written = [_written(name, value) for name, value in values.items()]
                self._database.execute(f"UPDATE jobs SET {places} WHERE id = ?", (*written, one))  # noqa: S608
                del self._unwritten[one]

    def end(self, job: str, state: JobState, error: Json | None = None) -> None:
        """Write down how a job has ended."""
        self.update(job, state=state, finished=time.time(), error=error)

    def find(self, job: str) -> JobRow | None:
        """Return a job; `None` if there is none of that id."""
        row = self._database.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        return self._read(row) if row is not None else None

    def job(self, job: str) -> JobRow:
        """Return a job. Raises `SourceError` if there is none of that id."""
        row = self.find(job)
        if row is None:
            raise SourceError(f"there is no job {job!r}")
        return row

    def jobs(
        self, state: str | None = None, limit: int = 100, *, kind: str | None = None, client: str | None = None
    ) -> list[JobRow]:
        """Return the newest jobs, newest first; of one state, kind or client, or all."""
        query = (
            "SELECT * FROM jobs WHERE state = coalesce(:state, state) AND kind = coalesce(:kind, kind) "
            "AND client = coalesce(:client, client) ORDER BY number DESC LIMIT :limit"
        )
        values = {"state": state, "kind": kind, "client": client, "limit": limit}
        return [self._read(row) for row in self._database.execute(query, values)]

    def keep_order(self, jobs: list[str]) -> None:
        """Write down in which order jobs wait, if that is news; jobs that are added later are behind these."""
        if jobs == self._waiting:
            return
        with contextlib.suppress(sqlite3.OperationalError):  # A full disk: the next change has the whole order, too.
            self._database.execute("INSERT OR REPLACE INTO waiting VALUES (0, ?)", (json.dumps(jobs),))
            self._waiting = jobs

    def unfinished(self) -> list[JobRow]:
        """Return what has not ended: what is drawn, what was begun, then what waits as it was kept, then by age."""
        query = "SELECT * FROM jobs WHERE state IN ('queued', 'drawing') ORDER BY number"
        rows = [self._read(row) for row in self._database.execute(query)]
        places = {job: place for place, job in enumerate(self._order())}

        def place(row: JobRow) -> tuple[bool, bool, int]:
            return row.state != "drawing", row.started is None, places.get(row.id, len(places))

        return sorted(rows, key=place)

    def _order(self) -> list[str]:
        found = self._database.execute("SELECT jobs FROM waiting").fetchone()
        try:
            kept = json.loads(found["jobs"]) if found is not None else []
        except ValueError:
            return []
        return [job for job in kept if isinstance(job, str)] if isinstance(kept, list) else []

    def reserved(self, folder: str) -> Iterator[int]:
        """Yield the last number that each job which has not ended may give to a file in a folder of the gallery."""
        # Of a long queue few have begun; what is not written yet may have.
        query = "SELECT * FROM jobs WHERE state IN ('queued', 'drawing') AND (first IS NOT NULL OR ?)"
        for row in map(self._read, self._database.execute(query, (bool(self._unwritten),)).fetchall()):
            if row.folder == folder and row.first is not None:
                yield row.first + row.plan["files"] - 1

    def owner(self, folder: str, number: int) -> str | None:
        """Return the job whose picture has this number in a folder of the gallery."""
        row = self._database.execute(
            "SELECT id, plan, first FROM jobs WHERE folder = ? AND first <= ? ORDER BY first DESC LIMIT 1",
            (folder, number),
        ).fetchone()
        return row["id"] if row is not None and number < row["first"] + json.loads(row["plan"])["files"] else None

    def _read(self, row: sqlite3.Row) -> JobRow:
        values = {name: row[name] for name in _COLUMNS}
        for name in _JSON:
            if values[name] is not None:
                values[name] = json.loads(values[name])
        return JobRow(**{**values, **self._unwritten.get(row["id"], {})})

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _check_rows(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` for a job that can't be told of."""
    for row in connection.execute("SELECT * FROM jobs"):
        try:
            found = {name: json.loads(row[name] or "null") for name in _JSON}
            if row["kind"] == "pictures":
                Order.model_validate(found["asked"])
            known = row["state"] in get_args(JobState) and (row["kind"] == "pictures" or found["asked"]["name"])
            if not known or not isinstance(found["plan"]["files"], int):
                raise ValueError("a state or number that is none")
        except (ValueError, TypeError, KeyError) as error:
            raise sqlite3.DatabaseError(f"job {row['id']!r} can't be read: {error}") from error


def _written(name: str, value: Any) -> Any:
    return json.dumps(value) if name in _JSON and value is not None else value
