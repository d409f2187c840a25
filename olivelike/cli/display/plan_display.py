"""What a person sees of a plan: a line for each node, and what all of them will cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from olivelike.cli.display.text import count, duration, expected, fitted, size, table, terminal_width
from olivelike.cli.stdout import write_found

if TYPE_CHECKING:
    from olivelike.engine import Options
    from olivelike.engine.plan import Plan, PlannedNode
    from olivelike.workflow.places import Place

_STATUSES = ("hit", "miss", "pending", "uncached")
_WIDE = 100
"""Columns of a terminal from which on bytes and memory of each node are shown too."""


def show_plan(workflow: str | Place, options: Options, json: bool) -> None:
    """Plan a workflow and write the plan to standard output."""
    from olivelike import engine
    from olivelike.engine.plan.forecast import TimeLeft

    prepared, found = engine.plan(workflow, options)
    name = prepared.workflow.workflow.name
    runs = _to_run(found)
    forecast = prepared.forecast() if runs else None
    seconds = {planned.node.id: forecast.seconds(planned.node.id) for planned in runs} if forecast else {}
    totals = _totals(found) | (forecast.left(seconds) if forecast else TimeLeft(0.0, 0)).to_json()
    value = {
        "workflow": name,
        "file": str(prepared.workflow.path),
        "cache_dir": str(prepared.store.root),
        "outputs": [str(output.path) for output in prepared.outputs],
        "totals": totals,
        "nodes": [{**planned.to_json(), "expected_seconds": seconds.get(planned.node.id)} for planned in found.nodes],
    }
    write_found(value, map(fitted, _lines(name, found, totals, seconds)), json=json)


def _totals(plan: Plan) -> dict[str, Any]:
    runs = _to_run(plan)
    return {
        "nodes": len(plan.nodes),
        **{status: sum(planned.status == status for planned in plan.nodes) for status in _STATUSES},
        "write_bytes": sum(planned.write_bytes for planned in runs),
        "largest_memory_bytes": max((planned.memory_bytes for planned in runs), default=0),
    }


def _to_run(plan: Plan) -> list[PlannedNode]:
    return [planned for planned in plan.nodes if planned.status != "hit"]


def _lines(name: str, plan: Plan, totals: dict[str, Any], seconds: Mapping[str, float | None]) -> list[str]:
    narrow = (terminal_width() or _WIDE) < _WIDE
    header = ("node", "status", "time", *(() if narrow else ("writes", "memory")), "why")
    rows = []
    for planned in plan.nodes:
        usual = seconds.get(planned.node.id)
        cost = ["?" if usual is None else duration(usual)]
        if not narrow:
            cost += [size(planned.write_bytes), size(planned.memory_bytes)]
        if planned.status == "hit":
            cost = [""] * len(cost)
        rows.append((planned.node.id, planned.status, *cost, planned.reason))
    if totals["hit"] == totals["nodes"]:
        last = f"{name}: nothing to run, all of {count(totals['nodes'], 'node')} stored"
    else:
        found = ", ".join(f"{totals[status]} {status}" for status in _STATUSES if totals[status])
        last = (
            f"{name}: {count(totals['nodes'], 'node')}: {found}; "
            f"{expected(totals['seconds_left'], totals['unknown_nodes'])}, about {size(totals['write_bytes'])} to "
            f"write, {size(totals['largest_memory_bytes'])} of memory for the largest node"
        )
    return [*table(header, rows, right=range(2, len(header) - 1)), "", last]
