"""A benchmark against an earlier one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.measure.bench.bench_report import BenchReport
    from olivelike.measure.bench.bench_settings import Checked
    from olivelike.measure.bench.row import Row, Value

_ALIKE: Final = (
    "engine", "provider", "dtype", "height", "width", "steps", "batch_size", "disable_safety_checker", "cuda_graph",
)  # fmt: skip
"""Rows that agree in these measured the same thing."""
_PLANNED: Final = ("engine", "height", "width", "steps", "batch_size", "disable_safety_checker")
"""Those that are known before anything is measured."""


@dataclass(frozen=True)
class Comparison:
    """The same thing, measured twice."""

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

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {**asdict(self), "change": round(self.change, 2), "slower": self.slower}

    def __str__(self) -> str:
        verdict = "slower than allowed" if self.slower else "allowed"
        change = f"{self.change:+.1f} %, {verdict}: up to {self.allowed:g} %"
        return (
            f"{self.engine}, batch size {self.batch_size}: {self.before:g} s, now {self.now:g} s ({change})"
        )


def check_baseline(baseline: BenchReport, checked: Checked) -> None:
    """Check that a baseline has something to compare with, before minutes are spent on measuring it.

    Raises:
        UsageError: if it has no row of what is to be measured.
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
    """Compare median latencies of the rows that both have.

    Args:
        report: what was measured now.
        baseline: what was measured before.
        threshold: percent that a median may be higher by.
    """
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


def _key(row: Row, columns: Sequence[str]) -> tuple[Value, ...]:
    return tuple(row.value(column) for column in columns)
