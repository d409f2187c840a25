"""The nodes of a run: their graph, and when each ran, on one axis."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from olivelike._text import count, duration, size
from olivelike.measure.report.content import Axis, Bar, Chain, Fold, Graph, Note, Section, Step, Table
from olivelike.measure.report.outcome import outcome_names
from olivelike.model.records.run_record import NodeRecord, RunRecord

_TICKS: Final = 5
"""Marks of the axis, about."""
_LONGEST: Final = 1e12
"""Seconds that a step may have taken; a record that says more lies."""
_LEAST: Final = 0.4
"""Percent of the axis that a bar takes at least, so that it can be seen."""
STATUSES = {"hit": "stored", "shelf": "from the shelf", "executed": "ran", "failed": "failed", "skipped": "skipped"}


def steps(run: RunRecord) -> Section:
    """Return the graph with hits and misses, and a table of the nodes that had something to do, in order of time."""
    if not run.nodes:
        return Section("steps", "", ())
    return Section("steps", "Steps", (step_graph(run), _timeline(run), _stored(run)))


def _timeline(run: RunRecord) -> Table:
    labels = output_labels(run)
    busy = [
        (node, labels.get(place, "")) for place, node in enumerate(run.nodes) if node.status not in ("hit", "shelf")
    ]
    busy.sort(key=lambda item: math.inf if item[0].start_seconds is None else item[0].start_seconds)
    nodes = [node for node, _ in busy]
    span = max((_end(node) for node in nodes), default=0)
    span = 1 if span < 1 / _LONGEST else span
    reasons = {node.reason for node in nodes}
    added = any(node.memory_before_bytes for node in nodes)
    known = any(node.start_seconds is not None for node in nodes)
    rows = [
        (_name(node, label), _bar(node, span), _took(node), _memory(node), _before(run, node), node.reason)
        for node, label in busy
    ]
    header = ["Step", _axis(span) if known else "How long", "Time", "Memory", "Last time", "Why"]
    shown = [0, 1, 2, 3, *([4] if any(row[4] for row in rows) else []), *([5] if len(reasons) > 1 else [])]
    same = f" All for the same reason: {next(iter(reasons))}." if len(reasons) == 1 and len(nodes) > 1 else ""
    caption = (
        f"{'When each step ran' if known else 'How long each step took'}, and the memory that "
        f"{'its worker took for it' if added else 'its worker had, with what earlier steps left in it'}.{same}"
    )
    classes = {1: "when", 4: "before", 5: "why"}
    return Table(
        [header[place] for place in shown],
        [[row[place] for place in shown] for row in rows],
        range(2, 5 if 4 in shown else 4),
        caption,
        style="timeline",
        columns={position: classes[place] for position, place in enumerate(shown) if place in classes},
    )


def _name(node: NodeRecord, label: str) -> Note:
    return Note(node.id, small=f"for {label}" if label and not node.id.endswith(f"@{label}") else "")


def _start(node: NodeRecord) -> float:
    return min(max(node.start_seconds or 0, 0), _LONGEST)


def _end(node: NodeRecord) -> float:
    return _start(node) + min(max(node.seconds, 0), _LONGEST)


def _bar(node: NodeRecord, span: float) -> Bar:
    left = 100 * _start(node) / span
    width = min(max(100 * node.seconds / span, _LEAST), 100)
    said = f"from {duration(_start(node))} to {duration(_end(node))}" if node.start_seconds is not None else ""
    return Bar(node.status, min(left, 100 - width), width, said)


def _axis(span: float) -> Axis:
    """Return marks of the seconds, at round numbers."""
    rough = span / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    places = (place * step for place in range(math.floor(span / step) + 1))
    # A mark at the very end would stand out of the column.
    marks = [(f"{place:g} s" if place else "0", 100 * place / span) for place in places if place <= span * 0.96]
    return Axis("When", tuple(marks))


def _took(node: NodeRecord) -> str:
    return "" if node.status == "skipped" else duration(node.seconds)


def _before(run: RunRecord, node: NodeRecord) -> str:
    """Return what the node took in the run before, if it ran there."""
    before = run.previous.nodes.get(node.id) if run.previous is not None else None
    return duration(before.seconds) if before is not None and before.seconds else ""


def _memory(node: NodeRecord) -> str | Note:
    if not node.peak_memory_bytes:
        return ""
    if not node.memory_before_bytes:
        return size(node.peak_memory_bytes)
    grown = max(node.peak_memory_bytes - node.memory_before_bytes, 0)
    return Note(f"+{size(grown)}", title=f"{size(node.peak_memory_bytes)} in its worker")


def _stored(run: RunRecord) -> Fold:
    """Return the nodes that did not have to run, a line for each network."""
    stored = [node for node in run.nodes if node.status == "hit"]
    by_component: dict[str, list[str]] = {}
    for node in stored:
        by_component.setdefault(node.component, []).append(node.id.removeprefix(f"{node.component}."))
    rows = [(component, ", ".join(names)) for component, names in by_component.items()]
    verb = "was" if len(stored) == 1 else "were"
    title = f"{count(len(stored), 'node')} {verb} {STATUSES['hit']} already"
    return Fold(title, (Table(("Network", "Steps"), rows, caption="Taken from the store"),))


def step_graph(run: RunRecord) -> Graph:
    """Return the graph as nested chains, and what its colours mean."""
    labels, children, roots = output_labels(run), _children(run.nodes), defaultdict[str, list[int]](list)
    below = {place for places in children.values() for place in places}
    for place, node in enumerate(run.nodes):
        if place not in below:
            roots[node.component].append(place)
    chains = {
        component: [_chain(place, run.nodes, children, labels) for place in places]
        for component, places in roots.items()
    }
    used = {node.status for node in run.nodes}
    return Graph(chains, {status: said for status, said in STATUSES.items() if status in used})


def output_labels(run: RunRecord) -> dict[int, str]:
    """Return the name of an output for each node, by position, that leads to it alone; none if there is only one."""
    names = outcome_names(run)
    if len(names) == 1:
        return {}
    children, leads = _children(run.nodes), dict[int, set[str]]()
    for place in reversed(range(len(run.nodes))):  # Parents come first.
        output = run.nodes[place].output
        leads[place] = {output} if output else set()
        for child in children.get(place, ()):
            leads[place] |= leads[child]
    return {place: names.get(next(iter(found)), "") for place, found in leads.items() if len(found) == 1}


def _children(nodes: Sequence[NodeRecord]) -> dict[int, list[int]]:
    """Return the positions of each node's followers in its component; a parent is one that came before."""
    found: dict[int, list[int]] = defaultdict(list)
    seen: dict[str, int] = {}
    for place, node in enumerate(nodes):
        parent = seen.get(node.parent or "")
        if parent is not None and nodes[parent].component == node.component:
            found[parent].append(place)
        seen.setdefault(node.id, place)
    return dict(found)


def _chain(
    place: int, nodes: Sequence[NodeRecord], children: Mapping[int, list[int]], labels: Mapping[int, str]
) -> Chain:
    steps: list[Step] = []
    while True:
        # A chain begins where it forks from others; from there on its label holds.
        steps.append(_step(nodes[place], "" if steps else labels.get(place, "")))
        followers = children.get(place, [])
        if len(followers) != 1:
            break
        (place,) = followers
    return Chain(tuple(steps), tuple(_chain(follower, nodes, children, labels) for follower in followers))


def _step(node: NodeRecord, label: str) -> Step:
    took = duration(node.seconds) if node.status == "executed" else STATUSES.get(node.status, node.status)
    return Step(node.name, node.status, node.reason, (took, f"for {label}") if label else (took,))
