"""What makes an output fast, and how fast it is: operators before and after fusion, engines, placement of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from olivelike._text import count
from olivelike.measure.report.element import Html, element, facts, fold, section, shown, table
from olivelike.measure.report.findings import Bench, Fusion, NetworkProfile, Profile, fusion

if TYPE_CHECKING:
    from olivelike.model.records.run_record import RunRecord

_MIB: Final = 2**20
_SHOWN: Final = 12
"""Operator types of each network that are in sight at once."""


def operators(run: RunRecord) -> Html:
    """Return, per fused graph, how many nodes it had and has, and what each rule did."""
    found = [(node.id, counts) for node in run.nodes if (counts := fusion(node)) is not None]
    rows = []
    for name, counts in found:
        before, after = counts.nodes_before, counts.nodes_after
        share = f"{100 * (after - before) / before:+.0f} %" if before else ""
        rows.append((name, f"{before:,}", f"{after:,}", share))
    overall = table("Nodes of each graph", ("Step", "Before", "After", "Change"), rows, numbers=(1, 2, 3))
    return section("operators", "Operators", overall, *(_graph(name, counts) for name, counts in found))


def _graph(node: str, found: Fusion) -> Html:
    before, after = found.operators_before, found.operators_after
    counts = {name: (before.get(name, 0), after.get(name, 0)) for name in {**before, **after}}
    changed = sorted(counts.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
    rows = [(name, f"{was:,}", f"{now:,}", f"{now - was:+,}" if now != was else "") for name, (was, now) in changed]
    rules = table(
        f"What each rule of {node} wrote, and left as it was",
        ("Rule", "Did", "What, or why not", "Times"),
        [*_by_rule(found.fused, "wrote"), *_by_rule(found.left, "left")],
        numbers=(3,),
    )
    counted = table(f"Operators of {node}", ("Operator", "Before", "After", "Change"), rows, numbers=(1, 2, 3))
    return fold(f"Operators and rules of {node}", counted, rules)


def _by_rule(found: Mapping[str, Mapping[str, int]], verb: str) -> Iterator[tuple[str, str, str, str]]:
    for rule, entries in found.items():
        for what, times in entries.items():
            yield rule, verb, what, f"{times:,}"


def speed(bench: Bench) -> Html:
    """Return latency and memory: a row for each engine and batch size."""
    if not bench.rows:
        return Html()
    cells = [
        (
            row.engine,
            (row.provider or "").removesuffix("ExecutionProvider"),
            row.dtype or "",
            shown(row.batch_size),
            f"{row.seconds:.3g} s" if row.seconds is not None else row.status,
            f"{row.speed:.2f}x" if row.speed is not None else "",
            f"{row.spread_percent:.0f} %" if row.spread_percent is not None else "",
            f"{row.peak_resident_MB * _MIB / 1e6:,.0f} MB" if row.peak_resident_MB else "",
        )
        for row in bench.rows
    ]
    first = bench.rows[0]
    against = next((f"; speed is against {row.speed_against}" for row in bench.rows if row.speed_against), "")
    size = f"{shown(first.width)}x{shown(first.height)}"
    header = ("Engine", "Provider", "Precision", "Batch", "Median", "Speed", "Spread", "Memory")
    caption = f"A batch of pictures of {size}, {shown(first.steps)} steps{against}"
    notes = [
        element("li", f"{row.engine}, batch size {row.batch_size}: {said}")
        for row in bench.rows
        for said in (row.note, row.error)
        if said
    ]
    return section(
        "speed",
        "Speed",
        table(caption, header, cells, numbers=range(3, len(header))),
        element("ul", *notes) if notes else Html(),
    )


def placement(profile: Profile) -> Html:
    """Return, per network, its nodes by provider, and the time that each operator type takes."""
    rows = [
        (network.name, shown(network.providers), f"{network.milliseconds:,.2f}", shown(network.inputs))
        for network in profile.networks
    ]
    caption, header = (
        "Nodes by execution provider, and time of one run",
        ("Network", "Nodes", "Milliseconds", "Inputs"),
    )
    return section(
        "placement",
        "Placement",
        table(caption, header, rows, numbers=(2,)),
        facts([("Measured on", profile.runtime), ("Runs", shown(profile.runs))]),
        *map(_operator_times, profile.networks),
    )


def _operator_times(network: NetworkProfile) -> Html:
    title = f"Operators of {network.name}"
    rows = [
        (found.operator, found.provider, f"{found.nodes:,}", f"{found.milliseconds:,.2f}", f"{100 * found.share:.1f} %")
        for found in network.operators
    ]
    header = ("Operator", "Provider", "Nodes", "Milliseconds", "Share")
    first = table(f"{title}, slowest first", header, rows[:_SHOWN], numbers=(2, 3, 4))
    rest = table(f"{title}, the rest", header, rows[_SHOWN:], numbers=(2, 3, 4))
    if not rows:
        return Html()
    return element("div", fold(title, first, fold(f"{count(len(rows[_SHOWN:]), 'faster operator')}", rest)))
