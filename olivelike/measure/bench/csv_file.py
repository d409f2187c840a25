"""Rows at the end of a CSV file that may have others already."""

from __future__ import annotations

import csv
import io
import os
from typing import TYPE_CHECKING, Final

from olivelike._files import held
from olivelike.errors import UsageError
from olivelike.measure.bench.row import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from olivelike.measure.bench.row import Row, Value

_LOCK_SECONDS: Final = 60


def check_csv(path: Path) -> None:
    """Check that rows can go to the end of a file, before minutes are spent on measuring them.

    Raises:
        UsageError: if it is no file of these columns, or can't be written.
    """
    require_writable(path)
    if not os.access(path.parent, os.W_OK):
        raise UsageError(
            f"{path.parent}: may not be written, and a lock lies beside {path.name} during a write"
        )
    _check_header(path)


def require_writable(path: Path) -> None:
    """Check that a file can be written.

    Raises:
        UsageError: if it is a folder, lies in none, or may not be written.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path}: is a folder, or lies in none; name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: may not be written")


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows to the end of a file, after a line of names if it is new; other processes may do the same.

    Raises:
        UsageError: if it has other columns, or can't be written.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        with held(lock, timeout=_LOCK_SECONDS, leaves_file=False):
            begun = _check_header(path)
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            if begun is None:
                writer.writerow(COLUMNS)
            elif not begun.endswith("\n"):  # Cut off, or written by hand.
                text.write("\n")
            writer.writerows([_cell(row[column]) for column in COLUMNS] for row in rows)
            with path.open("a", encoding="utf-8", newline="") as file:
                file.write(text.getvalue())
    except TimeoutError:
        raise UsageError(f"{path}: another process has been writing to it for a minute ({lock})") from None
    except OSError as error:
        raise UsageError(f"{path}: can't be written: {error.strerror or error}") from error


def _check_header(path: Path) -> str | None:
    """Return a file's text if its columns are ours, `None` if it has none yet."""
    try:
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        found = next(csv.reader(io.StringIO(text)), None)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: can't be read as CSV: {error}") from error
    if found is None:
        return None
    if tuple(found) != COLUMNS:
        place = next(
            (n for n, pair in enumerate(zip(found, COLUMNS, strict=False)) if pair[0] != pair[1]), None
        )
        what = (
            f"it has {len(found)} of them, and these are {len(COLUMNS)}"
            if place is None
            else f"its column {place + 1} is {found[place]!r}, and not {COLUMNS[place]!r}"
        )
        raise UsageError(f"{path}: has other columns ({what}); it is left as it is: name another file")
    return text


def _cell(value: Value) -> Value:
    """Return a value as the benchmark script that ONNX Runtime comes with has it in its table."""
    if isinstance(value, bool):
        return str(value).upper()
    return " ".join(value.split()) if isinstance(value, str) else value
