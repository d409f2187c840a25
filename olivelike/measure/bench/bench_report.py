"""What a benchmark gives, as JSON too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from olivelike._untrusted import read_json
from olivelike.errors import UsageError
from olivelike.measure.bench.row import Row

if TYPE_CHECKING:
    from pathlib import Path

_KIND: Final = "bench/1"


@dataclass(frozen=True)
class Skipped:
    """An engine that was left out."""

    engine: str
    reason: str


@dataclass(frozen=True)
class BenchReport:
    """All rows of a benchmark."""

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows of engines that failed, died or hung."""
        return tuple(row for row in self.rows if row.status != "ok")

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "kind": _KIND,
            "rows": [row.to_json() for row in self.rows],
            "skipped": [asdict(skip) for skip in self.skipped],
        }


def read_report(path: Path) -> BenchReport:
    """Read the rows of a report that `to_json` wrote.

    Raises:
        UsageError: if there is none, or it is something else.
    """
    remedy = "write one with `olivelike bench FOLDER --json-file FILE`"
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such baseline; {remedy}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: can't be read as a baseline: {error}; {remedy}") from error
    rows = content.get("rows") if isinstance(content, dict) and content.get("kind") == _KIND else None
    try:
        return BenchReport(TypeAdapter(tuple[Row, ...]).validate_python(rows))
    except ValidationError:
        raise UsageError(f"{path}: is no report of `olivelike bench`; {remedy}") from None
