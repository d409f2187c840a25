"""Results of the benchmark as tables for people: engines, ways of drawing, and variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from olivelike._table import Column, Table
from olivelike._text import size
from olivelike.cli.display.text import fitted, terminal_width
from olivelike.measure.result_rows import ENGINE_COLUMNS, FIDELITY_COLUMNS, EngineRow, FidelityReport

if TYPE_CHECKING:
    from olivelike.extras.bench.ablation import VariantRow
    from olivelike.extras.bench.bench_report import BenchReport, Comparison

_FIRST_TO_GO: Final = (
    "text ms", "safety ms", "VAE ms", "at rest", "first step s", "load s", "p95 s", "step ms", "dtype", "steps/s",
    "device memory", "memory",
)  # fmt: skip
"""Columns that a narrow terminal does without, in this order."""


def table_lines(report: BenchReport, comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a table of the rows, and below it what was left out and what failed."""
    if report.rows:
        yield from _table(report.rows)
    for skip in report.skipped:
        yield f"left out: {skip.engine}: {skip.reason}"
    for row in report.failed:
        yield f"{row.status}: {row.engine}, batch size {row.batch_size}: {row.error}"
    for row in report.rows:
        if row.note:
            yield f"note: {row.engine}, batch size {row.batch_size}: {row.note}"
    for comparison in comparisons:
        yield f"against the baseline: {comparison}"


def _table(rows: Sequence[EngineRow]) -> Iterator[str]:
    first = rows[0]
    caption = f"{first.folder}: {first.width}x{first.height}, {first.steps} steps{_against(rows)}"
    table, width, left_out = Table.of(rows, ENGINE_COLUMNS, caption).filled(), terminal_width(), []
    for title in _FIRST_TO_GO:
        if width is not None and title in table.header and max(map(len, table.lines()[1:])) > width:
            table = table.keeping([other for other in table.header if other != title])
            left_out.append(title)
    yield from table.lines()
    if left_out:
        titles = ", ".join(column.title for column in ENGINE_COLUMNS if column.title in left_out)
        yield fitted(f"left out on a narrow terminal (--csv has all): {titles}")


def _against(rows: Sequence[EngineRow]) -> str:
    against = dict.fromkeys(str(row.speed_against) for row in rows if row.speed_against)
    return f", speed against {' and '.join(against)}" if against else ""


def method_lines(report: FidelityReport) -> Iterator[str]:
    """Yield the lines of a report, each control below its method."""
    yield f"{report.folder}: {report.size[0]}x{report.size[1]}, {report.rows[0].pictures} pictures each"
    yield from Table.of(report.rows, FIDELITY_COLUMNS).lines()
    yield from (f"note: {note}" for note in report.notes)


def variant_lines(rows: Sequence[VariantRow]) -> list[str]:
    """Return a table of each network, a line for each variant."""
    lines: list[str] = []
    for component in dict.fromkeys(row.component for row in rows):
        mine = [row for row in rows if row.component == component]
        lines += ["", *Table.of(mine, _variant_columns(component, mine)).lines()]
        notes = dict.fromkeys(row.note.partition("\n")[0] for row in mine if row.note)
        lines += [f"note: {note}" for note in notes]
    return lines


def _variant_columns(component: str, rows: Sequence[VariantRow]) -> list[Column]:
    first = rows[0].median_latency

    def latency(row: VariantRow) -> str:
        return "" if row.median_latency is None else f"{row.median_latency * 1000:.1f} ms"

    def speed(row: VariantRow) -> str:
        return "" if row.median_latency is None or first is None else f"{first / row.median_latency:.2f}x"

    def memory(row: VariantRow) -> str:
        taken = row.device_memory_bytes or row.memory_bytes
        return "" if taken is None else size(taken)

    return [
        Column(component, lambda row: row.variant, right=False),
        Column("latency", latency),
        Column("speed", speed),
        Column("memory", memory),
        Column("files", lambda row: "" if row.size_bytes is None else size(row.size_bytes)),
        Column("error", _error),
        *([Column("weights", lambda row: row.weights or "", right=False)] if any(row.weights for row in rows) else []),
    ]


def _error(row: VariantRow) -> str:
    if row.verified is None:
        return "not verified"
    error = "not finite" if row.relative_error is None else f"{row.relative_error:.1e}"
    return error if row.verified else f"{error}, TOO FAR OFF"
