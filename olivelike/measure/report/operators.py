"""Operators before and after fusion, as `fuse` leaves them in the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.measure.report.element import Html, fold, section, table
from olivelike.measure.report.record_reading import mapping, number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from olivelike.measure.report.record_reading import NodeReport, RunReport


def operators(run: RunReport) -> Html:
    """Return, per fused graph, how many nodes it had and has, and what each rule did."""
    fused = [node for node in run.nodes if is_fused(node)]
    rows = []
    for node in fused:
        before, after = number(node.facts.get("nodes_before")), number(node.facts.get("nodes_after"))
        share = f"{100 * (after - before) / before:+.0f} %" if before else ""
        rows.append((node.id, f"{before:,.0f}", f"{after:,.0f}", share))
    overall = table("Nodes of each graph", ("Step", "Before", "After", "Change"), rows, numbers=(1, 2, 3))
    return section("operators", "Operators", overall, *map(_graph, fused))


def is_fused(node: NodeReport) -> bool:
    """Say whether a node left operator counts."""
    return bool(mapping(node.facts.get("operators_before")))


OPERATOR_FACTS = frozenset(
    {"nodes_before", "nodes_after", "operators_before", "operators_after", "fused", "left"}
)
"""Facts that this section shows."""


def _graph(node: NodeReport) -> Html:
    before = mapping(node.facts.get("operators_before"))
    after = mapping(node.facts.get("operators_after"))
    counts = {name: (number(before.get(name)), number(after.get(name))) for name in {**before, **after}}
    changed = sorted(counts.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
    rows = [
        (name, f"{was:,.0f}", f"{now:,.0f}", f"{now - was:+,.0f}" if now != was else "")
        for name, (was, now) in changed
    ]
    header = ("Operator", "Before", "After", "Change")
    counted = table(f"Operators of {node.id}", header, rows, numbers=(1, 2, 3))
    return fold(f"Operators and rules of {node.id}", counted, _rules(node))


def _rules(node: NodeReport) -> Html:
    fused = _by_rule(mapping(node.facts.get("fused")), "wrote")
    left = _by_rule(mapping(node.facts.get("left")), "left")
    header = ("Rule", "Did", "What, or why not", "Times")
    return table(
        f"What each rule of {node.id} wrote, and left as it was", header, [*fused, *left], numbers=(3,)
    )


def _by_rule(found: Mapping[str, Any], verb: str) -> Iterator[tuple[str, str, str, str]]:
    for rule, entries in found.items():
        for what, times in mapping(entries).items():
            yield rule, verb, what, shown(times)
