"""Why nodes of a workflow run or do not, as `olivelike explain` tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from olivelike._text import did_you_mean
from olivelike._untrusted import Json, JsonView
from olivelike.engine.plan.planner import Plan, PlannedNode
from olivelike.engine.plan.reasons import differences, nearest_of
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import DEFAULTS, Options, Prepared
from olivelike.errors import UsageError
from olivelike.workflow.places import Place


@dataclass(frozen=True)
class Explanation:
    """Why one node runs or does not."""

    planned: PlannedNode
    """The node with its status, key and reason."""
    changes: tuple[str, ...] = ()
    """For a miss, the differences from the nearest earlier run, a sentence each."""
    facts: JsonView = field(default_factory=dict)
    """For a hit, the findings of its pass."""
    created: str | None = None
    """For a hit, the time it was stored, in ISO 8601."""
    seconds: float | None = None
    """For a hit, the seconds that it took."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        key = self.planned.key
        return {
            "node": self.planned.node.id,
            "status": self.planned.status,
            "reason": self.planned.reason,
            "changes": list(self.changes),
            "key": key.digest if key else None,
            "inputs": key.inputs() if key else None,
            "facts": self.facts,
        }


def explain(ref: str | Path | Place, options: Options = DEFAULTS, node: str | None = None) -> tuple[Explanation, ...]:
    """Say why each node of a workflow would run or not; nothing changes.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: As for `plan`.
        node: One node, such as `unet.convert`; behind it comes what it waits for, nearest first.

    Raises:
        UsageError: if the workflow has no such node; the message has the nearest.
        OlivelikeError: as for `plan`.
    """
    return explain_plan(*plan(ref, options), node)


def explain_plan(prepared: Prepared, planned: Plan, node: str | None = None) -> tuple[Explanation, ...]:
    """Say why each node of a plan would run or not, as `explain` does.

    Raises `UsageError` if the workflow has no such node; the message has the nearest.
    """
    by_id = {one.node.id: one for one in planned.nodes}
    if node is None:
        return tuple(_explained(one, prepared) for one in planned.nodes)
    if node not in by_id:
        raise UsageError(f"the workflow has no node {node!r}; {did_you_mean(node, by_id, 'nodes')}")
    return tuple(_explained(one, prepared) for one in _with_causes(by_id[node], by_id))


def _with_causes(planned: PlannedNode, by_id: Mapping[str, PlannedNode]) -> Iterator[PlannedNode]:
    found = [planned]
    for one in found:
        yield one
        found += [by_id[name] for name in one.waits_for if by_id[name] not in found]


def _explained(planned: PlannedNode, prepared: Prepared) -> Explanation:
    if planned.key is None:
        return Explanation(planned)
    if planned.status == "miss":
        inputs = planned.key.inputs()
        before = nearest_of(planned.node.id, inputs, prepared.history)
        return Explanation(planned, () if before is None else tuple(differences(inputs, before)))
    action = prepared.store.get_action(planned.key.digest) if planned.status == "hit" else None
    if action is None:
        return Explanation(planned)
    return Explanation(planned, (), action.facts, action.created, action.seconds)
