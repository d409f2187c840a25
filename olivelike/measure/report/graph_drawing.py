"""Drawing a plan: Mermaid, Graphviz DOT, and a plain SVG that needs no other program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from olivelike.engine.plan.planner import Plan, PlannedNode

_COLOURS: Mapping[str, str] = {
    "hit": "#d3f2d3", "shelf": "#cfe6f7", "miss": "#ffe2b8", "pending": "#e8e8e8", "uncached": "#ffd0d0",
}  # fmt: skip
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 200, 44, 36
_LETTER = 6.6
"""About how wide a letter of the first line is."""


def to_mermaid(plan: Plan) -> str:
    """Return a Mermaid flowchart, one subgraph per component."""
    lines = ["flowchart LR"]
    for component, nodes in plan.by_component().items():
        lines.append(f"  subgraph {component}")
        lines += [f'    {_identifier(p.node.id)}["{p.node.label}<br/>{p.status}"]:::{p.status}' for p in nodes]
        lines.append("  end")
    lines += [f"  {_identifier(p.node.parent)} --> {_identifier(p.node.id)}" for p in plan.nodes if p.node.parent]
    lines += [f"  classDef {status} fill:{colour},stroke:#666" for status, colour in _COLOURS.items()]
    return "\n".join(lines) + "\n"


def to_dot(plan: Plan) -> str:
    """Return a Graphviz digraph, one cluster per component."""
    lines = ["digraph plan {", "  rankdir=LR;", '  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    for component, nodes in plan.by_component().items():
        lines.append(f'  subgraph "cluster_{component}" {{ label="{component}";')
        lines += [
            f'    "{p.node.id}" [label="{p.node.label}\\n{p.status}", fillcolor="{_COLOURS[p.status]}"];' for p in nodes
        ]
        lines.append("  }")
    lines += [f'  "{p.node.parent}" -> "{p.node.id}";' for p in plan.nodes if p.node.parent]
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(plan: Plan) -> str:
    """Return an SVG picture: a row per component, a column per depth of its chain."""
    wide = max([_BOX_WIDTH, *(16 + round(_LETTER * len(_title(p))) for p in plan.nodes)])
    places: dict[str, tuple[int, int]] = {}
    drawn: list[str] = []
    row = 0
    for chain in plan.by_component().values():
        used: dict[int, int] = {}
        for planned in chain:
            parent = places.get(planned.node.parent or "")
            column = parent[0] + 1 if parent else 0
            line = row + used.get(column, 0)
            used[column] = used.get(column, 0) + 1
            places[planned.node.id] = (column, line)
            drawn.append(_box(planned, column, line, wide))
        row += max(used.values(), default=1)
    arrows = [_arrow(places[p.node.parent], places[p.node.id], wide) for p in plan.nodes if p.node.parent in places]
    columns = 1 + max((column for column, _ in places.values()), default=0)
    width, height = columns * (wide + _GAP) + _GAP, row * (_BOX_HEIGHT + _GAP) + _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">'
    )
    marker = (
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>'
    )
    return "\n".join([head, marker, *arrows, *drawn, "</svg>"]) + "\n"


FORMATS: Mapping[str, Callable[[Plan], str]] = {"mermaid": to_mermaid, "dot": to_dot, "svg": to_svg}
"""Each drawing format and the function that makes it."""


def _identifier(node_id: str | None) -> str:
    return re.sub(r"\W", "_", node_id or "")


def _title(planned: PlannedNode) -> str:
    return f"{planned.node.component} · {planned.node.label}"


def _corner(place: tuple[int, int], wide: int) -> tuple[int, int]:
    column, line = place
    return _GAP + column * (wide + _GAP), _GAP + line * (_BOX_HEIGHT + _GAP)


def _box(planned: PlannedNode, column: int, line: int, wide: int) -> str:
    x, y = _corner((column, line), wide)
    shape = f'x="{x}" y="{y}" width="{wide}" height="{_BOX_HEIGHT}" rx="6"'
    return (
        f'<g class="{planned.status}"><title>{escape(planned.reason)}</title>'
        f'<rect {shape} fill="{_COLOURS[planned.status]}" stroke="#666"/>'
        f'<text x="{x + 8}" y="{y + 18}">{escape(_title(planned))}</text>'
        f'<text x="{x + 8}" y="{y + 35}" fill="#444">{planned.status}</text></g>'
    )


def _arrow(start: tuple[int, int], end: tuple[int, int], wide: int) -> str:
    (x1, y1), (x2, y2) = _corner(start, wide), _corner(end, wide)
    return (
        f'<line x1="{x1 + wide}" y1="{y1 + _BOX_HEIGHT // 2}" x2="{x2}" y2="{y2 + _BOX_HEIGHT // 2}" '
        'stroke="#666" marker-end="url(#tip)"/>'
    )
