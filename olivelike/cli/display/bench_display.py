"""What `olivelike bench` shows: lines while it measures, then a table."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, Literal

from olivelike.cli.display.text import duration, fitted, terminal_width
from olivelike.cli.stdout import write_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from olivelike.measure.bench.bench_report import BenchReport, Comparison
    from olivelike.measure.bench.contest import Event
    from olivelike.measure.bench.row import Row, Value

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
    ("peak_resident_MB", "memory MB"),
    ("peak_device_MB", "device MB"),
)
"""Columns and their headings."""
_FIRST_TO_GO: Final = (
    "text_encoder_ms",
    "safety_checker_ms",
    "vae_decoder_ms",
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


def show_event(event: Event) -> None:
    """Tell on standard error what happens."""
    if event.name == "opened":
        write_error(f"{event.engine}: open after {duration(event.seconds)}")
    elif event.name == "warmed_up":
        write_error(f"{event.engine}: warmed up")
    elif event.name == "failed":
        write_error(f"{event.engine}: {event.text}")


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
    value: Value = row.value(name)
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
