"""Report of a benchmark, as JSON and CSV too, and its comparison with an earlier one."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from olivelike._files import held
from olivelike._table import Table
from olivelike._untrusted import Json, read_bytes, read_json
from olivelike.cli.stdout import require_writable
from olivelike.errors import UsageError
from olivelike.extras.bench.bench_settings import Checked
from olivelike.measure.result_rows import ENGINE_FIELDS, EngineRow, Value
from olivelike.model.records.reading import part_of_json

_KIND: Final = "bench/1"
_ALIKE: Final = (
    "engine", "provider", "dtype", "height", "width", "steps", "batch_size", "disable_safety_checker", "cuda_graph",
)  # fmt: skip
"""Rows that agree in these measured the same thing."""
_PLANNED: Final = ("engine", "height", "width", "steps", "batch_size", "disable_safety_checker")
"""Columns of these that are known before anything is measured."""
_LOCK_SECONDS: Final = 60
_MOST_BYTES: Final = 256 << 20
"""Most bytes of a file that rows are added to."""


@dataclass(frozen=True)
class Skipped:
    """An engine that was left out."""

    engine: str
    reason: str


@dataclass(frozen=True)
class BenchReport:
    """All rows of a benchmark."""

    rows: tuple[EngineRow, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def failed(self) -> tuple[EngineRow, ...]:
        """The rows of engines that failed, died or hung."""
        return tuple(row for row in self.rows if row.status != "ok")

    def to_json(self) -> Json:
        """Return everything as JSON values."""
        return {
            "kind": _KIND,
            "rows": [row.to_json() for row in self.rows],
            "skipped": [asdict(skip) for skip in self.skipped],
        }


def read_report(path: Path) -> BenchReport:
    """Read the rows of a report that `to_json` wrote. Raises `UsageError` if there is none, or it is something else."""
    remedy = "write one with `olivelike bench FOLDER --json-file FILE`"
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such baseline; {remedy}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: can't be read as a baseline: {error}; {remedy}") from error
    known = isinstance(content, dict) and content.get("kind") == _KIND
    found = part_of_json(_Rows, content) if known else None
    if found is None:
        raise UsageError(f"{path}: is no report of `olivelike bench`; {remedy}")
    return BenchReport(found.rows)


@dataclass(frozen=True)
class _Rows:
    rows: tuple[EngineRow, ...]


@dataclass(frozen=True)
class Comparison:
    """Two measurements of one thing."""

    engine: str
    batch_size: int
    before: float
    """Median latency in seconds."""
    now: float
    allowed: float
    """Percent that it may be slower by."""

    @property
    def change(self) -> float:
        """Percent by which it is slower now; below 0 if it is faster."""
        return (self.now / self.before - 1) * 100

    @property
    def slower(self) -> bool:
        """Whether it is slower than allowed."""
        return self.change > self.allowed

    def to_json(self) -> Json:
        """Return everything as JSON values."""
        return {**asdict(self), "change": round(self.change, 2), "slower": self.slower}

    def __str__(self) -> str:
        verdict = "slower than allowed" if self.slower else "allowed"
        change = f"{self.change:+.1f} %, {verdict}: up to {self.allowed:g} %"
        return f"{self.engine}, batch size {self.batch_size}: {self.before:g} s, now {self.now:g} s ({change})"


def check_baseline(baseline: BenchReport, checked: Checked) -> None:
    """Check that a baseline has something to compare with, before minutes are spent on measuring it.

    Raises `UsageError` if it has no row of what is to be measured.
    """
    settings, (width, height) = checked.settings, checked.size
    planned = {
        (engine, height, width, settings.steps, batch_size, not checked.checks_safety)
        for engine in settings.engines
        for batch_size in settings.batch_sizes
    }
    if not any(row.median_latency and _key(row, _PLANNED) in planned for row in baseline.rows):
        raise nothing_in_common()


def compare(report: BenchReport, baseline: BenchReport, threshold: float) -> tuple[Comparison, ...]:
    """Compare median latencies of the rows that both have. A median may be higher by `threshold` percent."""
    before = {_key(row, _ALIKE): row.median_latency for row in baseline.rows}
    return tuple(
        Comparison(row.engine, row.batch_size or 0, old, row.median_latency, threshold)
        for row in report.rows
        if row.median_latency and (old := before.get(_key(row, _ALIKE)))
    )


def nothing_in_common() -> UsageError:
    """Return the error for a baseline that can't be compared with."""
    return UsageError(
        "--against: the baseline has no row of the same engine, provider, precision, size, steps, batch size and "
        "safety checker as one that is measured now; name another, or measure what it has"
    )


def _key(row: EngineRow, columns: Sequence[str]) -> tuple[Value, ...]:
    return tuple(getattr(row, column) for column in columns)


def check_csv(path: Path) -> None:
    """Check that rows can go to the end of a file, before minutes are spent on measuring them.

    Raises `UsageError` if it is no file of these columns, or can't be written.
    """
    require_writable(path)
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path.parent}: may not be written, and a lock lies beside {path.name} during a write")
    _check_header(path)


def append_rows(path: Path, rows: Sequence[EngineRow]) -> None:
    """Write rows to the end of a file, after a line of names if it is new; other processes may do the same.

    Raises `UsageError` if it has other columns, or can't be written.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        with held(lock, timeout=_LOCK_SECONDS, leaves_file=False):
            begun = _check_header(path)
            cells = [tuple(map(_cell, row.to_json().values())) for row in rows]
            text = Table(ENGINE_FIELDS, cells).csv(header=begun is None)
            cut_off = begun is not None and not begun.endswith("\n")  # Or written by hand.
            with path.open("a", encoding="utf-8", newline="") as file:
                file.write(f"\n{text}" if cut_off else text)
    except TimeoutError:
        raise UsageError(f"{path}: another process has been writing to it for a minute ({lock})") from None
    except OSError as error:
        raise UsageError(f"{path}: can't be written: {error.strerror or error}") from error


def _check_header(path: Path) -> str | None:
    """Return a file's text if its columns are ours, `None` if it has none yet."""
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8-sig") if path.exists() else ""
        found = next(csv.reader(io.StringIO(text)), None)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: can't be read as CSV: {error}") from error
    if found is None:
        return None
    if tuple(found) != ENGINE_FIELDS:
        place = next((n for n, pair in enumerate(zip(found, ENGINE_FIELDS, strict=False)) if pair[0] != pair[1]), None)
        what = (
            f"it has {len(found)} of them, and these are {len(ENGINE_FIELDS)}"
            if place is None
            else f"its column {place + 1} is {found[place]!r}, and not {ENGINE_FIELDS[place]!r}"
        )
        raise UsageError(f"{path}: has other columns ({what}); it is left as it is: name another file")
    return text


def _cell(value: Value) -> Value:
    """Return a value as the benchmark script that ONNX Runtime comes with has it in its table."""
    if isinstance(value, bool):
        return str(value).upper()
    return " ".join(value.split()) if isinstance(value, str) else value
