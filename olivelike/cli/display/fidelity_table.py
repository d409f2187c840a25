"""The table of `bench --method` and `ablate --pictures`: time of a picture against what it lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from olivelike.cli.display.text import table

if TYPE_CHECKING:
    from olivelike.measure.bench.fidelity_report import FidelityReport


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
