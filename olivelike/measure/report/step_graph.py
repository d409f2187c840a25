"""The graph of the nodes: a chain of steps for each component, which wraps and forks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from olivelike._text import duration
from olivelike.measure.report.element import Html, element
from olivelike.measure.report.outcome import outcome_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike.model.records.run_record import NodeRecord, RunRecord

STATUSES = {"hit": "stored", "executed": "ran", "failed": "failed", "skipped": "skipped"}


def step_graph(run: RunRecord) -> Html:
    """Return the graph as nested lists, and what its colours mean."""
    labels, children, roots = output_labels(run), _children(run.nodes), defaultdict[str, list[int]](list)
    below = {place for places in children.values() for place in places}
    for place, node in enumerate(run.nodes):
        if place not in below:
            roots[node.component].append(place)
    rows = [
        element(
            "div",
            element("h3", component),
            element("div", *(_chain(place, run.nodes, children, labels) for place in places)),
            class_="component",
        )
        for component, places in roots.items()
    ]
    used = {node.status for node in run.nodes}
    legend = [
        element("span", said, class_=f"key {status}") for status, said in STATUSES.items() if status in used
    ]
    return element(
        "figure",
        element("div", *rows, class_="graph"),
        element("figcaption", "A row for each network, its steps from left to right.", *legend),
    )


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
) -> Html:
    steps: list[Html] = []
    while True:
        # A chain begins where it forks from others; from there on its label holds.
        steps.append(_step(nodes[place], "" if steps else labels.get(place, "")))
        followers = children.get(place, [])
        if len(followers) != 1:
            break
        (place,) = followers
    if followers:
        branches = (_chain(follower, nodes, children, labels) for follower in followers)
        steps.append(element("li", *branches, class_="fork"))
    return element("ol", *steps, class_="chain")


def _step(node: NodeRecord, label: str) -> Html:
    took = duration(node.seconds) if node.status == "executed" else STATUSES.get(node.status, node.status)
    return element(
        "li",
        element("span", node.name, class_="name"),
        element("span", took, class_="took"),
        element("span", f"for {label}", class_="took") if label else Html(),
        class_=f"step {node.status}",
        title=node.reason,
    )
