"""Pictures as files below one folder, and an index of them, which the files can rebuild.

`DIR/2026-11-22/00001-42.png` and so on are the pictures, `DIR/favourites.txt` the names of those that people like best.
`DIR/.index/` has what can be made again (`pictures.sqlite`, `thumbs/`), the journal of jobs, and pictures that nobody
wants to keep; `DIR/.uploads/` what clients sent.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._files import Lock, try_lock, write_whole
from olivelike._untrusted import read_bytes
from olivelike.errors import SourceError, StoreError, UsageError
from olivelike.serve.gallery.database import open_database
from olivelike.serve.gallery.journal import Journal
from olivelike.serve.gallery.picture_id import picture_id

if TYPE_CHECKING:
    from olivelike.runtime.pictures.picture_reading import PictureFile

INDEX: Final = ".index"
UPLOADS: Final = ".uploads"
PASSING: Final = f"{INDEX}/passing"
"""Pictures of orders that are not to be saved."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS pictures (
    place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, path TEXT UNIQUE NOT NULL, job TEXT,
    number INTEGER, sheet INTEGER NOT NULL, created REAL NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
    seed INTEGER, first_seed INTEGER, attempts INTEGER NOT NULL, prompt TEXT NOT NULL, model TEXT, flagged INTEGER,
    record TEXT, parameters TEXT, words TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS pictures_job ON pictures (job);
CREATE TABLE IF NOT EXISTS favourites (path TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS makers (path TEXT PRIMARY KEY, client TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS senders (upload TEXT, client TEXT NOT NULL, PRIMARY KEY (upload, client));
CREATE TABLE IF NOT EXISTS copies (upload TEXT PRIMARY KEY, picture TEXT NOT NULL);
"""
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NUMBERED: Final = re.compile(r"(\d{5,9})-(?:\d+|(sheet))(?:-\d+)?\.png", re.ASCII)
_SECONDS_OF_PASSING: Final = 3600.0
_FAVOURITES: Final = "favourites.txt"
_MOST_FAVOURITES: Final = 16 << 20
"""Bytes of their file."""


@dataclass(frozen=True)
class PictureRow:
    """A picture in the index."""

    id: str
    path: str
    """Below the gallery."""
    job: str | None
    number: int | None
    """Among the pictures of its job, from 0."""
    sheet: bool
    created: float
    width: int
    height: int
    seed: int | None
    first_seed: int | None
    attempts: int
    prompt: str
    model: str | None
    flagged: bool | None
    record: str | None
    """JSON."""
    parameters: str | None
    """A1111's text."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Facts that pictures in a search have; `None` leaves one open."""

    ids: tuple[str, ...] | None = None
    """Of which they are."""
    words: tuple[str, ...] = ()
    """Which the recipe has, all of them, in small or large letters."""
    negative: str | None = None
    """A word that the negative prompt has."""
    exact: Mapping[str, str | int] = field(default_factory=dict)
    """Columns with their values."""
    lora: str | None = None
    flagged: bool | None = None
    favourite: bool | None = None
    day: str | None = None
    """On which it was drawn, such as `2026-11-26`, at the server."""
    sheets: bool = False
    """Whether sheets and plots are meant, in place of pictures."""
    having: tuple[Filter, ...] = ()
    """Whose facts pictures have as well; `sheets` of these says nothing."""
    lacking: tuple[Filter, ...] = ()
    """Whose facts they don't have."""

    def conditions(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield conditions on rows of the index, each with its values."""
        yield "sheet = ? AND path NOT LIKE ?", (self.sheets, f"{PASSING}/%")
        for one in (self, *self.having):
            yield from one.facts()
        for one in self.lacking:
            condition, values = _joined(one.facts())
            yield f"({condition}) IS NOT TRUE", values

    def facts(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield the conditions of what it says itself, each with its values."""
        if self.ids is not None:
            yield "id IN (SELECT value FROM json_each(?))", (json.dumps(self.ids),)
        for word in self.words:
            yield _IN_WORDS, (f"%{_literal(word)}%",)
        if self.negative is not None:
            yield _IN_WORDS, (f"%\nnegative prompt: %{_literal(self.negative)}%\nsteps: %",)
        for column, value in self.exact.items():
            if column not in _COLUMNS:  # It becomes part of the query.
                raise ValueError(f"{column!r} is no column of the gallery")
            yield f"{column} = ?", (_stored(column, value),)
        if self.lora is not None:
            names = "SELECT 1 FROM json_each(record, '$.loras') WHERE json_extract(value, '$.name') = ?"
            yield f"EXISTS ({names})", (self.lora,)
        if self.flagged is not None:
            yield "coalesce(flagged, 0) = ?", (self.flagged,)
        if self.favourite is not None:
            yield "(path IN (SELECT path FROM favourites)) = ?", (self.favourite,)
        if self.day is not None:
            yield "substr(path, 1, 11) = ?", (f"{self.day}/",)


EVERY: Final = Filter()
_IN_WORDS: Final = "words LIKE ? ESCAPE '\\'"
_SEEDS: Final = ("seed", "first_seed")
_BEYOND: Final = 2**63 - 1
"""Behind every place."""
_COLUMNS: Final = tuple(one.name for one in fields(PictureRow))


class Gallery:
    """A folder of pictures, for one server at a time."""

    def __init__(self, folder: Path) -> None:
        """Open it, and make the index fit the files.

        Raises `UsageError` if another server has it, and `StoreError` if nothing can be written there, or the list of
        favourites can't be read.
        """
        self.folder = folder.absolute()
        index = self.folder / INDEX
        try:
            for needed in (index / "thumbs", self.folder / PASSING, self.folder / UPLOADS):
                needed.mkdir(parents=True, exist_ok=True)
            lock = try_lock(index / "lock")
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"{folder}: can't be the gallery: {why}; name another with --gallery") from error
        if lock is None:
            raise UsageError(f"{folder}: another server has this gallery; name another with --gallery, or end that one")
        self._lock: Lock = lock
        self._highest: dict[str, int] = {}
        """The highest number of a file that was found, by folder."""
        self._held = "", 0
        """Folder, and the last number in it that nobody else is given."""
        self._coming: list[tuple[PictureRow, str | None]] = []
        """Pictures that the index does not have yet, and who had them made."""
        try:
            self.journal = Journal(index / "jobs.sqlite")
            self._opened, _ = open_database(index / "pictures.sqlite", _SCHEMA)
            for path in self.fit(self.known(), there := self.files(tidy=True)):
                self.add_file(path, there[path], self.read(path))
        except StoreError:
            lock.release()
            raise
        except (sqlite3.Error, OSError) as error:
            lock.release()
            raise StoreError(f"{index}: can't be used: {error}; free some space, or name another gallery") from error

    def close(self) -> None:
        """Let another server have it."""
        self._database.close()  # With what was coming.
        self.journal.close()
        self._lock.release()

    def reserve(self, *, passing: bool, held: int = 0) -> tuple[str, int]:
        """Return a folder below the gallery and the first number that is free there.

        Neither a file nor a job that is still drawn has it: several are drawn at once where there are several workers.
        So many numbers, of a job that the journal does not have yet, are `held` until `release`.
        """
        folder = PASSING if passing else _today()
        place = self.folder / folder
        if not place.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        known = self._highest.get(folder, 0)
        least = f"{known:05}"
        # Most of thousands were seen before: names of five digits are in the order of their numbers.
        new = (name for name in os.listdir(place) if name > least or name[5:6] != "-")  # noqa: PTH208
        numbers = [int(match[1]) for name in new if (match := _NUMBERED.fullmatch(name))]
        known = self._highest[folder] = max([known, *numbers])
        taken = [self._held[1]] if self._held[0] == folder else []
        first = max([known, *taken, *self.journal.reserved(folder)]) + 1
        if held:
            self._held = folder, first + held - 1
        return folder, first

    def release(self) -> None:
        """Hold no numbers any more: the journal has them, or nobody does."""
        self._held = "", 0

    def add(self, row: PictureRow, maker: str | None = None) -> None:
        """Put a picture whose file is there into the index, and who had it made, if that is known."""
        self.settle()
        self._insert(row, maker)

    def add_soon(self, row: PictureRow, maker: str | None) -> None:
        """Let `settle` do what `add` does, or whoever looks at the index before: none of them misses the picture."""
        self._coming.append((row, maker))

    def settle(self, job: str | None = None) -> None:
        """Put what is coming into the index.

        Raises what the disk refuses of a job's pictures; that is tried again next time, and so are those of others.
        """
        refused, left = None, []
        try:
            while self._coming:
                row, maker = self._coming.pop(0)
                try:
                    self._insert(row, maker)
                except sqlite3.OperationalError as error:
                    left.append((row, maker))
                    refused = error if job is not None and row.job == job else refused
        finally:
            self._coming[:0] = left
        if refused is not None:
            raise refused

    def _insert(self, row: PictureRow, maker: str | None) -> None:
        words = f"{row.parameters or row.prompt}\n{row.model or ''}".casefold()
        marks = ", ".join("?" * (len(_COLUMNS) + 1))
        statement = f"INSERT OR REPLACE INTO pictures ({', '.join(_COLUMNS)}, words) VALUES ({marks})"  # noqa: S608
        with self._opened:
            self._opened.execute("BEGIN")
            self._opened.execute(statement, (*(_stored(name, getattr(row, name)) for name in _COLUMNS), words))
            if maker is not None:
                self._opened.execute("INSERT OR REPLACE INTO makers VALUES (?, ?)", (row.path, maker))

    @property
    def _database(self) -> sqlite3.Connection:
        """The index with all that was coming, but for what the disk refuses."""
        if self._coming:
            self.settle()
        return self._opened

    def find(self, picture: str) -> PictureRow | None:
        """Return a picture; `None` if there is none of that id."""
        for row, _ in self._coming:  # Who was told of it asks for it before the index has it.
            if row.id == picture:
                return row
        return next(self._rows("id = ?", picture), None)

    def there(self, pictures: Collection[str]) -> list[PictureRow]:
        """Return those of pictures whose file is there, each once, in their order."""
        asked = json.dumps(list(pictures))  # One question: there may be thousands.
        found = {row.id: row for row in self._rows("id IN (SELECT value FROM json_each(?))", asked)}
        return [row for one in dict.fromkeys(pictures) if (row := found.get(one)) is not None and self.has_file(row)]

    def maker(self, row: PictureRow) -> str | None:
        """Return the client that had a picture drawn; `None` if that is not known any more."""
        found = self._database.execute("SELECT client FROM makers WHERE path = ?", (row.path,)).fetchone()
        return found["client"] if found is not None else None

    def of_job(self, job: str) -> list[PictureRow]:
        """Return what a job has drawn, its sheet last."""
        return list(self._rows("job = ? ORDER BY sheet, number", job))

    def search(
        self, wanted: Filter = EVERY, *, before: int | None = None, limit: int = 50
    ) -> tuple[list[PictureRow], int | None]:
        """Return the newest pictures, and the `before` that gives the older ones.

        Args:
            wanted: what they have in common.
            before: place in the index, before which they lie.
            limit: how many are returned at most.
        """
        where, values = _joined(wanted.conditions())
        query = f"SELECT * FROM pictures WHERE {where} AND place < ? ORDER BY place DESC LIMIT ?"  # noqa: S608
        rows = self._database.execute(query, (*values, before or _BEYOND, limit)).fetchall()
        return [_read(row) for row in rows], rows[-1]["place"] if len(rows) == limit else None

    def count(self, wanted: Filter = EVERY) -> int:
        """Return how many pictures there are."""
        where, values = _joined(wanted.conditions())
        (number,) = self._database.execute(f"SELECT count(*) FROM pictures WHERE {where}", values).fetchone()  # noqa: S608
        return int(number)

    def marks(self, wanted: Filter = EVERY) -> list[tuple[str, bool]]:
        """Return the ids of all pictures, newest first, and whether each is a favourite."""
        where, values = _joined(wanted.conditions())
        liked = "path IN (SELECT path FROM favourites)"
        query = f"SELECT id, {liked} AS liked FROM pictures WHERE {where} ORDER BY place DESC"  # noqa: S608
        return [(row["id"], bool(row["liked"])) for row in self._database.execute(query, values)]

    def path(self, row: PictureRow) -> Path:
        """Return a picture's file."""
        return self.folder / row.path

    def has_file(self, row: PictureRow) -> bool:
        """Tell whether a picture's file is there; what a link leads to may be anybody's."""
        path = self.path(row)
        return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()

    def thumb(self, picture: str) -> Path:
        """Return where the small form of a picture is kept."""
        return self.folder / INDEX / "thumbs" / f"{picture}.webp"

    def delete(self, row: PictureRow) -> None:
        """Delete a picture: its file first, since the index can be made again."""
        self.unlink(row)
        self.forget([row])

    def unlink(self, row: PictureRow) -> None:
        """Delete a picture's file, from any thread; what is left to do of it is `forget`."""
        for path in (self.path(row), self.thumb(row.id)):
            path.unlink(missing_ok=True)

    def forget(self, rows: Sequence[PictureRow]) -> None:
        """Take pictures whose files are gone out of the index."""
        liked = self.favourites(rows)
        if liked:  # The next one of this name is another picture.
            self.mark_favourites([row for row in rows if row.id in liked], liked=False)
        ids, paths = json.dumps([row.id for row in rows]), json.dumps([row.path for row in rows])
        with self._database as database:
            database.execute("BEGIN")
            for table, column, values in (
                ("pictures", "id", ids),
                ("makers", "path", paths),
                ("copies", "picture", ids),
            ):
                named = f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"  # noqa: S608
                database.execute(named, (values,))

    def senders(self) -> dict[str, str]:
        """Return clients by the uploads that they sent last."""
        return {one["upload"]: one["client"] for one in self._opened.execute("SELECT * FROM senders ORDER BY rowid")}

    def note_sender(self, upload: str, client: str) -> None:
        """Write down who sent an upload; several may have."""
        self._opened.execute("INSERT OR REPLACE INTO senders VALUES (?, ?)", (upload, client))

    def forget_senders(self, uploads: Collection[str]) -> None:
        """Forget who sent uploads that are gone."""
        gone = json.dumps(list(uploads))
        self._opened.execute("DELETE FROM senders WHERE upload IN (SELECT value FROM json_each(?))", (gone,))

    def sent_by(self, client: str) -> set[str]:
        """Return the uploads that a client sent."""
        found = self._opened.execute("SELECT upload FROM senders WHERE client = ?", (client,))
        return {one["upload"] for one in found}

    def note_copy(self, upload: str, row: PictureRow) -> None:
        """Write down that an upload is a picture of the gallery."""
        self._opened.execute("INSERT OR REPLACE INTO copies VALUES (?, ?)", (upload, row.id))

    def copied(self, upload: str) -> PictureRow | None:
        """Return the picture that an upload is; `None` for one that came from elsewhere."""
        return next(self._rows("id = (SELECT picture FROM copies WHERE upload = ?)", upload), None)

    def favourites(self, pictures: Sequence[PictureRow]) -> set[str]:
        """Return the ids of those among pictures that are favourites."""
        asked = json.dumps([row.path for row in pictures])
        query = "SELECT path FROM favourites WHERE path IN (SELECT value FROM json_each(?))"
        marked = {row["path"] for row in self._database.execute(query, (asked,))}
        return {row.id for row in pictures if row.path in marked}

    def mark_favourites(self, rows: Sequence[PictureRow], *, liked: bool) -> None:
        """Write down that pictures are favourites, or none. Raises `StoreError` if that can't be written."""
        named = {row.path for row in rows}
        if any(path.startswith(PASSING) for path in named):
            raise UsageError("this picture is not saved, so it can be no favourite; save it first")
        paths = {found["path"] for found in self._database.execute("SELECT path FROM favourites")} - named
        paths |= named if liked else set()
        try:
            write_whole(self.folder / _FAVOURITES, "".join(f"{path}\n" for path in sorted(paths)).encode())
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"{_FAVOURITES}: can't be written: {why}; free some space in the gallery") from error
        self._set_favourites(paths)

    def _set_favourites(self, paths: Collection[str]) -> None:
        self._database.execute("BEGIN")
        self._database.execute("DELETE FROM favourites")
        self._database.executemany("INSERT INTO favourites VALUES (?)", [(path,) for path in paths])
        self._database.execute("COMMIT")

    def _read_favourites(self) -> set[str]:
        """Return the pictures that the file names; lines that name none are for other programs."""
        path = self.folder / _FAVOURITES
        if path.is_symlink() or not path.is_file():
            return set()
        try:
            lines = read_bytes(path, _MOST_FAVOURITES).decode(errors="replace").splitlines()
        except OSError as error:  # The next picture that is marked would be the only one.
            why = error.strerror or error
            raise StoreError(f"{path}: can't be read: {why}; make it readable, or take it away") from error
        return {line for line in lines if _DAY.fullmatch(line[:10]) and _NUMBERED.fullmatch(line[11:])}

    def drop_passing(self) -> None:
        """Delete what was not to be saved, an hour after it was drawn."""
        for row in self._rows(f"path LIKE '{PASSING}/%' AND created < ?", time.time() - _SECONDS_OF_PASSING):
            self.delete(row)

    def _rows(self, where: str, *values: Any) -> Iterator[PictureRow]:
        query = f"SELECT * FROM pictures WHERE {where}"  # noqa: S608
        return map(_read, self._database.execute(query, values).fetchall())

    def files(self, *, tidy: bool = False) -> dict[str, float]:
        """Return the files that are pictures, below the gallery, with when each was written; from any thread.

        `tidy` deletes what processes that were killed have left: nobody may draw then.
        """
        there: dict[str, float] = {}
        days = (
            one.name
            for one in os.scandir(self.folder)
            if _DAY.fullmatch(one.name) and one.is_dir(follow_symlinks=False)
        )
        for folder in (*days, PASSING):
            for entry in os.scandir(self.folder / folder):
                if not entry.is_file(follow_symlinks=False):
                    continue
                if entry.name.endswith(".tmp") and tidy:
                    Path(entry.path).unlink(missing_ok=True)
                elif _NUMBERED.fullmatch(entry.name):
                    there[f"{folder}/{entry.name}"] = entry.stat().st_mtime
        return there

    def known(self) -> set[str]:
        """Return the files that the index has."""
        return {row["path"] for row in self._database.execute("SELECT path FROM pictures")}

    def fit(self, known: AbstractSet[str], there: Mapping[str, float]) -> list[str]:
        """Take files that vanished out of the index, and read the list of favourites; return what is new, oldest first.

        `known` is what the index had before it was seen which files are `there`.
        """
        self._database.executemany("DELETE FROM pictures WHERE path = ?", [(path,) for path in known - there.keys()])
        self._database.execute("DELETE FROM makers WHERE path NOT IN (SELECT path FROM pictures)")
        self._set_favourites(self._read_favourites())
        return sorted(there.keys() - self.known(), key=there.__getitem__)

    def read(self, path: str) -> tuple[str, PictureFile] | None:
        """Return the id of a file that is new, and what it holds; from any thread.

        `None` for one that others damaged: it stays there, and is not shown.
        """
        from olivelike.runtime.pictures import read_picture
        from olivelike.runtime.pictures.picture_reading import MOST_BYTES

        file = self.folder / path
        try:
            return picture_id(path, read_bytes(file, MOST_BYTES)), read_picture(file)
        except (OSError, SourceError):
            return None

    def add_file(self, path: str, created: float, found: tuple[str, PictureFile] | None) -> bool:
        """Put a file into the index as `read` has found it; say whether it is in it."""
        if found is None or next(self._rows("path = ?", path), None) is not None:
            return False  # A job that has just drawn it knows more of it.
        picture, file = found
        folder, _, name = path.rpartition("/")
        match = _NUMBERED.fullmatch(name)
        assert match is not None
        job = self.journal.owner(folder, int(match[1]))
        row = self.journal.find(job) if job else None
        number = int(match[1]) - row.first if row and row.first is not None and not match[2] else None
        record = file.record
        seed = record.seed if record else None
        made = PictureRow(
            picture, path, job, number, bool(match[2]), created, file.width, file.height, seed, seed, 1,
            record.prompt if record else "", record.model if record else None, None,
            record.to_json() if record and file.own else None, file.parameters,
        )  # fmt: skip
        try:
            self.add(made, None if row is None else row.client)
        except OverflowError:  # A number that SQLite has none for.
            return False
        return True


def _literal(word: str) -> str:
    """Return a word for a pattern of `LIKE` that stands for itself; the index has small letters."""
    return re.sub(r"([\\%_])", r"\\\1", word.casefold())


def _today() -> str:
    return f"{datetime.now().astimezone():%Y-%m-%d}"


def _joined(facts: Iterable[tuple[str, tuple[Any, ...]]]) -> tuple[str, tuple[Any, ...]]:
    """Return conditions as one, with their values."""
    conditions, values = zip(*facts, strict=True)
    return " AND ".join(conditions), tuple(chain.from_iterable(values))


def _stored(column: str, value: Any) -> Any:
    """Return a value as SQLite has it, whose numbers have a sign: seeds of 64 bits from 2^63 on are negative there."""
    if column not in _SEEDS or value is None or not str(value).isdecimal():
        return value
    seed = int(value)
    return seed - 2**64 if 2**63 <= seed < 2**64 else seed


def _read(row: sqlite3.Row) -> PictureRow:
    values = {name: row[name] for name in _COLUMNS}
    values |= {name: values[name] + 2**64 for name in _SEEDS if values[name] is not None and values[name] < 0}
    values["sheet"] = bool(values["sheet"])
    values["flagged"] = None if values["flagged"] is None else bool(values["flagged"])
    return PictureRow(**values)
