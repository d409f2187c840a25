"""The nodes of a run: their graph, and what each took."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from olivelike.plan.drawing import Box, draw_svg
from olivelike.report.element import Html, element, section, table
from olivelike.units import duration, size

if TYPE_CHECKING:
    from olivelike.report.reading import NodeReport, RunReport

_STATUSES = {"hit": "stored", "executed": "ran", "failed": "failed", "skipped": "skipped"}


def steps(run: RunReport) -> Html:
    """Return the graph with hits and misses, and a table of the same nodes with times and memory."""
    if not run.nodes:
        return Html()
    return section("steps", "Steps", _graph(run), _table(run))


def _graph(run: RunReport) -> Html:
    boxes = (
        Box(node.id, node.component, node.name, node.parent, node.status, _note(node), node.reason)
        for node in run.nodes
    )
    drawing = element(
        "div",
        _shrinkable(draw_svg(boxes)),
        class_="scroll graph",
        tabindex="0",
        role="img",
        aria_label=_DRAWN,
    )
    legend = [element("span", label, class_=f"key {status}") for status, label in _STATUSES.items()]
    return element("figure", drawing, element("figcaption", *legend))


_DRAWN = "Graph of the nodes, a row per component; the table below has the same nodes"


def _shrinkable(svg: str) -> Html:
    """Let a drawing shrink a little where it is too wide; from there on it scrolls, so that it can be read."""
    width = re.search(r' width="(\d+)"', svg)
    least = int(width[1]) * _LEAST_SCALE if width else 0
    return Html(svg.replace("<svg ", f'<svg style="min-width:{least:.0f}px" ', 1))


_LEAST_SCALE: Final = 0.85


def _note(node: NodeReport) -> str:
    return duration(node.seconds) if node.has_run else _STATUSES.get(node.status, node.status)


def _table(run: RunReport) -> Html:
    longest = max((node.seconds for node in run.nodes if node.has_run), default=0)
    largest = max((node.peak_memory_bytes for node in run.nodes if node.has_run), default=0)
    rows = [
        (
            node.id,
            element("span", _STATUSES.get(node.status, node.status), class_=f"key {node.status}"),
            _bar(duration(node.seconds), node.seconds, longest) if node.has_run else "",
            _bar(size(node.peak_memory_bytes), node.peak_memory_bytes, largest) if node.has_run else "",
            node.reason,
        )
        for node in run.nodes
    ]
    header = ("Node", "Ended", "Time", "Peak memory", "Why")
    return table("Time and memory of each node", header, rows, numbers=(2, 3))


def _bar(label: str, value: float, most: float) -> Html:
    """Return a number with a bar under it, as long as its share of the largest one."""
    share = 100 * max(value, 0) / most if most > 0 else 0
    bar = element("span", class_="bar", style=f"width:{share:.1f}%", aria_hidden="true")
    return element("span", label, bar, class_="measure")
