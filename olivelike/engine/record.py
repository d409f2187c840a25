"""The record of one run: versions, host, nodes with times and digests, sizes."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from olivelike.environment import host, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.engine.preparation import Prepared
    from olivelike.engine.run import RunResult
    from olivelike.executor.executor import NodeResult


def run_record(
    prepared: Prepared, result: RunResult, nodes: Sequence[NodeResult], error: str | None
) -> dict[str, Any]:
    """Return the record of a run as JSON values."""
    workflow = prepared.workflow
    return {
        **result.to_json(),
        "workflow": workflow.workflow.name,
        "file": str(workflow.path),
        "target": workflow.workflow.target.choice(),
        "source": dict(prepared.source.origin),
        "finished": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "error": error,
        "versions": versions(),
        "host": host(),
        "node_results": {node.id: node.status for node in nodes},
        "nodes_total": result.nodes,
        "nodes": [_without_derivations(node.to_json()) for node in nodes],
    }


def _without_derivations(node: dict[str, Any]) -> dict[str, Any]:
    """Drop what the output's own record holds, one line per initializer."""
    facts = {name: value for name, value in node["facts"].items() if name != "derivations"}
    return {**node, "facts": facts}
