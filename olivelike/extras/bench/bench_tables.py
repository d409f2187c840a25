"""Results of the benchmark as tables for people: engines, ways of drawing, and variants."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

from olivelike.cli.display.text import fitted, size, table, terminal_width

if TYPE_CHECKING:
    from rich.table import Table

    from olivelike.extras.bench.ablation import Row as Variant
    from olivelike.extras.bench.bench_report import BenchReport, Comparison
    from olivelike.extras.bench.row import Row
    from olivelike.measure.report.fidelity_report import FidelityReport

_SHOWN: Final = (
    ("engine", "engine"),
    ("provider", "provider"),
    ("dtype", "dtype"),
    ("batch_size", "batch"),
    ("median_latency", "median s"),
    ("speed", "speed"),
    ("spread_percent", "spread"),
    ("p95_latency", "p95 s"),
    ("steps_per_second", "steps/s"),
    ("text_encoder_ms", "text ms"),
    ("step_ms", "step ms"),
    ("vae_decoder_ms", "VAE ms"),
    ("safety_checker_ms", "safety ms"),
    ("load_seconds", "load s"),
    ("first_step_seconds", "first step s"),
    ("rest_resident_MB", "at rest MB"),
    ("peak_resident_MB", "memory MB"),
    ("peak_device_MB", "device MB"),
)
"""Columns and their headings."""
_FIRST_TO_GO: Final = (
    "text_encoder_ms",
    "safety_checker_ms",
    "vae_decoder_ms",
    "rest_resident_MB",
    "first_step_seconds",
    "load_seconds",
    "p95_latency",
    "step_ms",
    "dtype",
    "steps_per_second",
    "peak_device_MB",
    "peak_resident_MB",
)
"""Columns that a narrow terminal does without, in this order."""
_TEXTS: Final = frozenset({"engine", "provider", "dtype"})
"""Columns of text; the others are numbers, flush right."""
_WIDE: Final = 1000
"""Columns in which any table has room."""


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


def _table(rows: Sequence[Row]) -> Iterator[str]:
    from rich.console import Console

    # A column that no row has anything in only takes room.
    shown = [name for name, _ in _SHOWN if any(row.value(name) is not None for row in rows)]
    terminal = terminal_width()
    left_out = []
    if terminal is not None:
        for name in _FIRST_TO_GO:
            if name in shown and _width(rows, shown) > terminal:
                shown.remove(name)
                left_out.append(name)
    console = Console(file=io.StringIO(), width=terminal or _width(rows, shown))
    console.print(_grid(rows, shown))
    assert isinstance(console.file, io.StringIO)
    yield from (line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())
    if left_out:
        titles = ", ".join(title for name, title in _SHOWN if name in left_out)
        yield fitted(f"left out on a narrow terminal (--csv has all): {titles}")


def _width(rows: Sequence[Row], shown: Sequence[str]) -> int:
    """Return the columns that the table takes unfolded."""
    from rich.console import Console

    return Console(width=_WIDE).measure(_grid(rows, shown)).maximum


def _grid(rows: Sequence[Row], shown: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    first = rows[0]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{first.folder}: {first.width}x{first.height}, {first.steps} steps{_against(rows)}",
        title_justify="left",
    )
    for name, title in _SHOWN:
        if name in shown:
            justify: Literal["left", "right"] = "left" if name in _TEXTS else "right"
            table.add_column(title, justify=justify, overflow="fold", no_wrap=name == "engine")
    for row in rows:
        table.add_row(*(_cell(row, name) for name, _ in _SHOWN if name in shown))
    return table


def _against(rows: Sequence[Row]) -> str:
    against = dict.fromkeys(str(row.speed_against) for row in rows if row.speed_against)
    return f", speed against {' and '.join(against)}" if against else ""


def _cell(row: Row, name: str) -> str:
    value = row.value(name)
    if name == "speed":
        return "" if value is None else f"{value:.2f}x"
    if name == "spread_percent":
        return "" if value is None else f"{value:.0f}%"
    if name == "median_latency" and row.status != "ok":
        return str(row.status)
    if name == "provider":
        return str(value or "").removesuffix("ExecutionProvider")
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1 else f"{value:.2f}" if value < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


def method_lines(report: FidelityReport) -> Iterator[str]:
    """Yield the lines of a report, each control below its method."""
    yield f"{report.folder}: {report.size[0]}x{report.size[1]}, {report.rows[0].pictures} pictures each"
    header = ["", "steps", "median s", "speed", "PSNR", "worst", "SSIM", "captions right"]
    rows = [
        (
            f"  {row.method}" if row.role == "control" else row.method,
            str(row.steps),
            f"{row.median_seconds:.3f}",
            f"{row.speed:.2f}x",
            *row.texts(),
        )
        for row in report.rows
    ]
    yield from table(header, rows, right={1, 2, 3, 4, 5, 6, 7})
    for note in report.notes:
        yield f"note: {note}"


def variant_lines(rows: Sequence[Variant]) -> list[str]:
    """Return a table of each network, a line for each variant."""
    lines: list[str] = []
    for component in dict.fromkeys(row.component for row in rows):
        mine = [row for row in rows if row.component == component]
        first = mine[0].median_latency
        quantised = any(row.weights for row in mine)
        cells = [
            (
                row.variant,
                "" if row.median_latency is None else f"{row.median_latency * 1000:.1f} ms",
                "" if row.median_latency is None or first is None else f"{first / row.median_latency:.2f}x",
                size(memory) if (memory := row.device_memory_bytes or row.memory_bytes) is not None else "",
                "" if row.size_bytes is None else size(row.size_bytes),
                _error(row),
                *([row.weights or ""] if quantised else []),
            )
            for row in mine
        ]
        header = (component, "latency", "speed", "memory", "files", "error", *(["weights"] if quantised else []))
        lines += ["", *table(header, cells, right={1, 2, 3, 4, 5})]
        notes = dict.fromkeys(row.note.partition("\n")[0] for row in mine if row.note)
        lines += [f"note: {note}" for note in notes]
    return lines


def _error(row: Variant) -> str:
    if row.verified is None:
        return "not verified"
    error = "not finite" if row.relative_error is None else f"{row.relative_error:.1e}"
    return error if row.verified else f"{error}, TOO FAR OFF"
