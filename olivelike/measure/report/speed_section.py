"""Latency and memory of engines, as `olivelike bench` leaves them beside a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.measure.report.element import Html, element, section, table
from olivelike.measure.report.record_reading import is_number, mapping, number, sequence, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB: Final = 2**20


def speed(found: Mapping[str, Any]) -> Html:
    """Return a row for each engine and batch size.

    Args:
        found: What `BenchReport.to_json` returned; empty if nothing was measured.
    """
    rows = _rows(found)
    cells = [
        (
            shown(row.get("engine")),
            shown(row.get("provider")).removesuffix("ExecutionProvider"),
            shown(row.get("dtype")),
            shown(row.get("batch_size")),
            f"{number(row['median_latency']):.3g} s" if _is_measured(row) else shown(row.get("status")),
            f"{number(row['speed']):.2f}x" if is_number(row.get("speed")) else "",
            f"{number(row['spread_percent']):.0f} %" if is_number(row.get("spread_percent")) else "",
            f"{number(row.get('peak_resident_MB')) * _MIB / 1e6:,.0f} MB"
            if row.get("peak_resident_MB")
            else "",
        )
        for row in rows
    ]
    header = ("Engine", "Provider", "Precision", "Batch", "Median", "Speed", "Spread", "Memory")
    first = rows[0] if rows else {}
    size = f"{shown(first.get('width'))}x{shown(first.get('height'))}"
    against = next(
        (f"; speed is against {row['speed_against']}" for row in rows if row.get("speed_against")), ""
    )
    caption = f"A batch of pictures of {size}, {shown(first.get('steps'))} steps{against}"
    notes = [
        element(
            "li", f"{shown(row.get('engine'))}, batch size {shown(row.get('batch_size'))}: {shown(row[key])}"
        )
        for row in rows
        for key in ("note", "error")
        if row.get(key)
    ]
    return section(
        "speed",
        "Speed",
        table(caption, header, cells, numbers=range(3, len(header))),
        element("ul", *notes) if notes else Html(),
    )


def fastest(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row of the fastest engine that runs the optimised folder, at its smallest batch size."""
    rows = [row for row in _rows(found) if _is_measured(row) and row.get("provider") not in _ORIGINALS]
    return min(rows, key=lambda row: (number(row.get("batch_size")), row["median_latency"]), default=None)


_ORIGINALS: Final = frozenset({"default", "compile", "xformers"})
"""What the column `provider` says of engines that run the original in torch."""


def _rows(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in map(mapping, sequence(found.get("rows"))) if row]


def _is_measured(row: Mapping[str, Any]) -> bool:
    return row.get("status") == "ok" and is_number(row.get("median_latency"))
