"""Outcome of a run: sizes, errors, speed, nodes, operators before and after fusion; a row for each output."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from olivelike._text import change_of_size, count, quoted, size
from olivelike.measure.report.content import (
    Block,
    Command,
    Facts,
    Fold,
    Hint,
    Items,
    Note,
    Section,
    Table,
    Tiles,
    shown,
)
from olivelike.measure.report.step_facts import (
    Bench,
    Figures,
    Findings,
    Fusion,
    Kept,
    Verified,
    figures,
    fusion,
    quantised,
)
from olivelike.measure.result_rows import (
    ENGINE_COLUMNS,
    FIDELITY_COLUMNS,
    OPERATOR_COLUMNS,
    FidelityReport,
    FolderProfile,
    NetworkProfile,
)
from olivelike.model.records.run_record import NodeRecord, RunRecord

_REASONS: Final = 3
"""Operators that the reason for more nodes names."""
_WIDE_BYTES: Final = 3.0
"""A weight takes less in half precision, and more in float32."""

Tile = tuple[str, str, str | Command]


@dataclass(frozen=True)
class _Outcome:
    """Facts that are known of one output."""

    size: int
    """Sum of its files in bytes; 0 if they are not known."""
    nodes: tuple[int, int] | None
    """Count in its graphs that were fused, before and after."""
    fused: str
    """Count of these graphs, where it is not all of them."""
    gained: tuple[str, ...]
    """Operators that fusion made more of, the most first; of graphs that it made larger."""
    verified: tuple[tuple[str, Figures], ...]
    """Networks with how far they are from the original."""

    @property
    def worst(self) -> tuple[str, Figures] | None:
        """The network that is furthest off."""
        return max(self.verified, key=lambda item: item[1].error, default=None)


def outcome(run: RunRecord, findings: Findings) -> tuple[Block, ...]:
    """Return the figures that a reader asks for first; of several outputs a table."""
    found = {path: _outcome(run, path, findings) for path in run.outputs}
    source = sum(run.source_files.values())
    if len(found) > 1:
        return (_by_output(found, source), *_hint(run, findings))
    (path, one), *_ = [*found.items(), ("", _outcome(run, "", findings))]
    there = path if one.size or run.status == "ok" else ""
    return (Tiles([_size(run, source, one.size), _error(one, there), _speed(findings, there), _nodes(one)]),)


def outcome_names(run: RunRecord) -> dict[str, str]:
    """Return what the outputs are called, by folder: their last names where these are different."""
    names = {path: path.replace("\\", "/").rsplit("/", 1)[-1] for path in run.outputs}
    return names if len(set(names.values())) == len(names) else {path: path for path in run.outputs}


def _outcome(run: RunRecord, path: str, findings: Findings) -> _Outcome:
    by_id = {node.id: node for node in run.nodes}
    written = [node for node in run.nodes if node.name == "materialize"]
    parents = {node.parent for node in run.nodes}
    only = path if len(run.outputs) <= 1 else ""  # Records of earlier versions do not say who writes what.
    ends = [node for node in written or run.nodes if (node.output or only) == path and node.id not in parents]
    chains = [list(_upwards(node, by_id)) for node in ends]
    fused = [[counts for node in chain if (counts := fusion(node)) is not None] for chain in chains]
    pairs = [(counts[-1].nodes_before, counts[0].nodes_after) for counts in fused if counts]
    compared = [(node.component, node.facts.get("verification")) for chain in chains for node in chain]
    if len(run.outputs) <= 1 or findings.verified.folder in {path, outcome_names(run)[path]}:
        compared += findings.verified.components.items()
    return _Outcome(
        sum(run.output_files.get(path, {}).values()),
        (sum(before for before, _ in pairs), sum(after for _, after in pairs)) if pairs else None,
        f"{len(pairs)} of {count(len(chains), 'network')}" if len(pairs) < len(chains) else "",
        _gained([(counts[-1], counts[0]) for counts in fused if counts]),
        tuple((name, found) for name, value in compared if (found := figures(value)) is not None),
    )


def _gained(pairs: Sequence[tuple[Fusion, Fusion]]) -> tuple[str, ...]:
    more: Counter[str] = Counter()
    for first, last in pairs:
        more.update(last.operators_after)
        more.subtract(first.operators_before)
    return tuple(f"{name} +{number:,}" for name, number in more.most_common(_REASONS) if number > 0)


def _upwards(node: NodeRecord, by_id: Mapping[str, NodeRecord]) -> Iterator[NodeRecord]:
    """Yield a node and all that it comes from, the nearest first."""
    passed: set[str] = set()
    at: NodeRecord | None = node
    while at is not None and at.id not in passed:
        passed.add(at.id)
        yield at
        at = by_id.get(at.parent or "")


def _size(run: RunRecord, source: int, written: int) -> Tile:
    if not written:
        return "Size", size(source) if source else "unknown", "of the source; nothing was written"
    if not source:
        return "Size", size(written), "of the output"
    why = f": {_why_larger(run, source, written)}" if written > source else ""
    return "Size", change_of_size(source, written), f"{_share(source, written)}, source to output{why}"


def _why_larger(run: RunRecord, source: int, written: int) -> str:
    """Say what an output has that its source has not."""
    numbers = sum(run.elements.values())
    if numbers and source / numbers < _WIDE_BYTES <= written / numbers:
        return f"the source has its weights in half precision, {run.target.name} computes in float32"
    return "graphs come to the weights"


def _share(before: int, after: int) -> str:
    return f"{100 * (after - before) / before:+.0f} %".replace("-", "\N{MINUS SIGN}")


def _error(one: _Outcome, path: str) -> Tile:
    """Return the largest relative error against the original."""
    if one.worst is None:
        return "Worst error", "not compared", _command("verify", path)
    name, worst = one.worst
    too_far = any(found.passed is False for _, found in one.verified)
    limit = f", limit {worst.limit:.0e}" if worst.limit is not None else ""
    verdict = "too far off" if too_far else f"in {name}"
    return "Worst error", _figure(worst.error), f"{verdict}{limit}; relative to the original"


def _figure(error: float) -> str:
    return f"{error:.1e}" if math.isfinite(error) else "not finite"


def _speed(findings: Findings, path: str) -> Tile:
    row = findings.bench.fastest
    if row is None:
        return "Speed", "not measured", _command("bench", path)
    batch = "picture" if row.batch_size in (None, 1) else f"batch of {row.batch_size}"
    engine = f"{row.engine}{'; noisy, see Speed' if row.note else ''}"
    median = f"{row.median_latency:.3g} s"
    if row.speed is not None and row.speed_against and row.speed_against != row.engine:
        return "Speed", f"{row.speed:.2f}x {row.speed_against}", f"{median} a {batch}, {engine}"
    return "Speed", median, f"a {batch}, {engine}"


def _hint(run: RunRecord, findings: Findings) -> Iterator[Hint]:
    if findings.bench.fastest is None and run.status == "ok":
        yield Hint("Speed is not measured: ", _command("bench", run.outputs[0]))


def _command(name: str, path: str) -> str | Command:
    if not path:
        return "there is no output"
    return Command(f"olivelike {name} {'FOLDER' if path.startswith('…') else quoted(path)}")


def _nodes(one: _Outcome) -> Tile:
    if one.nodes is None:
        return "Graph nodes", "not fused", "no step `fuse` has run in it"
    before, after = one.nodes
    why = f": {', '.join(one.gained)}" if after > before and one.gained else ""
    return "Graph nodes", f"{before:,} → {after:,}", f"{_share(before, after) if before else ''} by fusion{why}"


def _nodes_text(one: _Outcome) -> str | Note:
    if one.nodes is None:
        return "not fused"
    counts = f"{one.nodes[0]:,} → {one.nodes[1]:,}"
    return Note(counts, small=f"in {one.fused}") if one.fused else counts


def _by_output(found: Mapping[str, _Outcome], source: int) -> Table:
    rows = [
        (
            path,
            size(one.size) if one.size else "not written",
            _share(source, one.size) if one.size and source else "",
            _nodes_text(one),
            _figure(one.worst[1].error) if one.worst else "not compared",
        )
        for path, one in found.items()
    ]
    header = ("Output", "Size", "Change", "Graph nodes", "Worst error")
    caption = f"{count(len(rows), 'output')} of a source of {size(source)}"
    return Table(header, rows, (1, 2, 3, 4), caption)


_SPEED: Final = ("engine", "provider", "dtype", "batch", "median s", "speed", "spread", "memory")
"""Columns of engines that a report shows."""
_SHOWN: Final = 12
"""Operator types of each network that are in sight at once."""


def operators(run: RunRecord) -> Section:
    """Return, per fused graph, how many nodes it had and has, and what each rule did."""
    found = [(node.id, counts) for node in run.nodes if (counts := fusion(node)) is not None]
    rows = []
    for name, counts in found:
        before, after = counts.nodes_before, counts.nodes_after
        share = f"{100 * (after - before) / before:+.0f} %" if before else ""
        rows.append((name, f"{before:,}", f"{after:,}", share))
    overall = Table(("Step", "Before", "After", "Change"), rows, (1, 2, 3), "Nodes of each graph")
    return Section("operators", "Operators", (overall, *(_graph(name, counts) for name, counts in found)))


def _graph(node: str, found: Fusion) -> Fold:
    before, after = found.operators_before, found.operators_after
    counts = {name: (before.get(name, 0), after.get(name, 0)) for name in {**before, **after}}
    changed = sorted(counts.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
    rows = [(name, f"{was:,}", f"{now:,}", f"{now - was:+,}" if now != was else "") for name, (was, now) in changed]
    rules = Table(
        ("Rule", "Did", "What, or why not", "Times"),
        [*_by_rule(found.fused, "wrote"), *_by_rule(found.left, "left")],
        (3,),
        f"What each rule of {node} wrote, and left as it was",
    )
    counted = Table(("Operator", "Before", "After", "Change"), rows, (1, 2, 3), f"Operators of {node}")
    return Fold(f"Operators and rules of {node}", (counted, rules))


def _by_rule(found: Mapping[str, Mapping[str, int]], verb: str) -> Iterator[tuple[str, str, str, str]]:
    for rule, entries in found.items():
        for what, times in entries.items():
            yield rule, verb, what, f"{times:,}"


def speed(bench: Bench) -> Section:
    """Return latency and memory: a row for each engine and batch size."""
    if not bench.rows:
        return Section("speed", "", ())
    first = bench.rows[0]
    against = next((f"; speed is against {row.speed_against}" for row in bench.rows if row.speed_against), "")
    caption = f"A batch of pictures of {shown(first.width)}x{shown(first.height)}, {shown(first.steps)} steps{against}"
    notes = [
        f"{row.engine}, batch size {row.batch_size}: {said}"
        for row in bench.rows
        for said in (row.note, row.error)
        if said
    ]
    return Section("speed", "Speed", (Table.of(bench.rows, ENGINE_COLUMNS, caption).keeping(_SPEED), Items(notes)))


def fidelity(report: FidelityReport | None) -> Section:
    """Return what cheaper ways of drawing save and cost, each above its control."""
    caption = "A picture's time, and its likeness to that of the folder as it is; controls have fewer steps alone"
    table = Table.of(report.rows if report is not None else (), FIDELITY_COLUMNS, caption)
    return Section("fidelity", "Time against fidelity", (table,))


def placement(profile: FolderProfile | None) -> Section:
    """Return, per network, its nodes by provider, and the time that each operator type takes."""
    if profile is None:
        return Section("placement", "", ())
    rows = [
        (network.name, shown(network.providers), f"{network.milliseconds:,.2f}", shown(network.inputs))
        for network in profile.networks
    ]
    header = ("Network", "Nodes", "Milliseconds", "Inputs")
    placed = Table(header, rows, (2,), "Nodes by execution provider, and time of one run")
    measured = Facts([("Measured on", profile.runtime), ("Runs", shown(profile.runs))])
    times = (_operator_times(network) for network in profile.networks if network.operators)
    return Section("placement", "Placement", (placed, measured, *times))


def _operator_times(network: NetworkProfile) -> Fold:
    title = f"Operators of {network.name}"
    first = Table.of(network.operators[:_SHOWN], OPERATOR_COLUMNS, f"{title}, slowest first")
    rest = Table.of(network.operators[_SHOWN:], OPERATOR_COLUMNS, f"{title}, the rest")
    return Fold(title, (first, Fold(f"{count(len(rest.rows), 'faster operator')}", (rest,))))


def quantised_weights(run: RunRecord, later: Verified) -> Section:
    """Return a row for each type in which a step left weights, and the names of those that stay in float.

    `later` is what `olivelike verify` found of the run's output.
    """
    found = [(node, kept.kept_weights) for node in run.nodes if (kept := quantised(node)) is not None]
    rows = [row for node, kept in found for row in _rows_of_types(node, kept, _found_behind(node, run, later))]
    header = ("Step", "Weights in", "Blocks of", "Layers", "Weights", "Share", "Error")
    caption = "Weights of layers that steps quantised; the error is that of the whole network"
    in_float = (_in_float(node, one) for node, kept in found for one in kept if one.names)
    table = Table(header, rows, (3, 4, 5, 6), caption)
    return Section("quantisation", "Quantisation", (table, *in_float))


def _rows_of_types(node: NodeRecord, kept: tuple[Kept, ...], error: Figures | None) -> Iterator[tuple[str, ...]]:
    total = sum(one.weights for one in kept) or 1
    for place, one in enumerate(kept):
        yield (
            node.id,
            one.form,
            ", ".join(map(str, one.blocks)),
            f"{one.layers:,}",
            f"{one.weights:,}",
            f"{100 * one.weights / total:.1f} %",
            "" if place else "not compared" if error is None else f"{error.error:.1e}",
        )


def _in_float(node: NodeRecord, kept: Kept) -> Fold:
    title = f"{count(kept.layers, 'layer')} of {node.id} in {kept.form}, the largest first"
    return Fold(title, (Table(("Weight",), [(name,) for name in kept.names], caption=title),))


def _found_behind(node: NodeRecord, run: RunRecord, later: Verified) -> Figures | None:
    """Return what the step `verify` behind a step found, or else `olivelike verify` of the only output."""
    behind = [figures(other.facts.get("verification")) for other in run.nodes if other.parent == node.id]
    one = next((found for found in behind if found is not None), None)
    if one is None and len(run.outputs) <= 1:
        one = figures(later.components.get(node.component))
    return one
