"""The plan: every node with its key, hit or miss, and the reason; computing it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from olivelike.engine.kinds import kind_of
from olivelike.engine.kinds.asset_nodes import ASSETS
from olivelike.engine.output.assets import check_tokenizers
from olivelike.engine.plan.reasons import Earlier, differences, nearest_of
from olivelike.engine.plan.resolver import Resolution, Resolver
from olivelike.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike._untrusted import Json
    from olivelike.engine.execute.sharing import Unshared
    from olivelike.engine.keys import Key
    from olivelike.engine.kinds.kind import Estimate
    from olivelike.engine.plan.node import Node
    from olivelike.sources import PipelineSource

Status = Literal["hit", "shelf", "miss", "pending", "uncached"]


@dataclass(frozen=True)
class PlannedNode:
    """One node of a plan."""

    node: Node
    status: Status
    """`pending`: whether it runs is decided when upstream has run."""
    reason: str
    key: Key | None
    write_bytes: int
    """Estimated bytes that the node writes if it runs."""
    memory_bytes: int
    """Estimated peak memory of the node if it runs."""
    waits_for: tuple[str, ...] = ()
    """Nodes that have to run before it is known whether this one does."""

    def to_json(self) -> Json:
        """Return the node as JSON values."""
        return {
            "id": self.node.id,
            "component": self.node.component,
            "pass": self.node.name,
            "parent": self.node.parent,
            "status": self.status,
            "reason": self.reason,
            "key": self.key.digest if self.key else None,
            "write_bytes": self.write_bytes,
            "memory_bytes": self.memory_bytes,
        }


@dataclass(frozen=True)
class Plan:
    """All nodes of a workflow, parents first."""

    nodes: tuple[PlannedNode, ...]
    warnings: tuple[str, ...] = ()
    """Stores that did not answer, and what the source lacks or holds in vain."""

    def by_component(self) -> dict[str, list[PlannedNode]]:
        """Return the nodes of each component, in order."""
        groups: dict[str, list[PlannedNode]] = {}
        for planned in self.nodes:
            groups.setdefault(planned.node.component, []).append(planned)
        return groups

    def has(self, node_id: str) -> bool:
        """Tell whether there is a node of this id."""
        return any(planned.node.id == node_id for planned in self.nodes)

    def count(self, status: Status) -> int:
        """Return how many nodes have this status."""
        return sum(planned.status == status for planned in self.nodes)


def make_plan(
    nodes: Sequence[Node], resolver: Resolver, source: PipelineSource, history: Earlier, sharing: Unshared
) -> Plan:
    """Resolve every node as far as stored results allow.

    Args:
        nodes: The DAG, parents first.
        resolver: Told along the way what the store holds.
        source: Sizes for the estimates.
        history: Earlier runs.
        sharing: Asked for what is not stored here.
    """
    planned = []
    for node in nodes:
        try:
            resolution = resolver.resolve(node)
        except DamagedError:  # A run sets the object aside and remakes it.
            resolution = Resolution(None)
        if (known := resolution.action or resolution.shelved) is not None:
            resolver.record_outputs(node, known.outputs)
        else:
            resolver.foresee(node)
        waits_for = resolver.waits_for(node)
        status, reason = explain_status(node, resolution, history, waits_for)
        if status == "miss" and node.name == ASSETS:
            check_tokenizers(source)
        if status == "miss" and node.output is None and resolution.key is not None:
            found = sharing.look(resolver.question(node, resolution.key))
            if found.action is not None:
                resolver.record_outputs(node, found.action.outputs)
                status, reason = "hit", found.reason
        key, cost = resolution.key, estimate(node, nodes, source)
        planned.append(PlannedNode(node, status, reason, key, cost.write_bytes, cost.memory_bytes, waits_for))
    return Plan(tuple(planned), tuple(sharing.problems()))


def all_hits(nodes: Sequence[Node], resolver: Resolver) -> Mapping[str, Resolution] | None:
    """Return every node's resolution if all are hits, else `None` as soon as one is not.

    Raises `DamagedError` when a stored object that decides a key turns out damaged.
    """
    found: dict[str, Resolution] = {}
    for node in nodes:
        if node.output is not None and not resolver.has_output(node):
            return None  # No file need be hashed for that.
        found[node.id] = resolution = resolver.resolve(node)
        if not resolution.done:
            return None
        if resolution.action is not None:
            resolver.record_outputs(node, resolution.action.outputs)
    return found


def explain_status(
    node: Node, resolution: Resolution, history: Earlier, waits_for: Sequence[str] = ()
) -> tuple[Status, str]:
    """Return a node's status, and why it has it, in words; the nodes of `waits_for` have yet to run."""
    if resolution.done:
        return "hit", "the output folder is up to date" if node.output is not None else "stored"
    if resolution.problem is not None:
        return "uncached", resolution.problem
    if resolution.key is None:
        names, has = " and ".join(waits_for) or "others", "has" if len(waits_for) == 1 else "have"
        return "pending", f"decided when {names} {has} run"
    if resolution.shelved is not None:
        return "shelf", "; ".join(filter(None, ("the shelf has it", resolution.damage)))
    if resolution.damage:
        return "miss", f"{resolution.damage}; it is made anew"
    inputs = resolution.key.inputs()
    before = nearest_of(node.id, inputs, history)
    if before is None:
        return "miss", "never run here"
    changed = differences(inputs, before)
    if changed:
        return "miss", "; ".join(changed)
    if node.output is not None:
        return "miss", "the output folder lacks it"
    return "miss", "its result is no longer stored, or was damaged"


def estimate(node: Node, nodes: Sequence[Node], source: PipelineSource) -> Estimate:
    """Return what a node is expected to cost if it runs."""
    return kind_of(node).estimate(node, ancestors(node, nodes), source)


def ancestors(node: Node, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes before one, the nearest first."""
    by_id = {other.id: other for other in nodes}
    found: list[Node] = []
    while node.parent is not None:
        node = by_id[node.parent]
        found.append(node)
    return found
