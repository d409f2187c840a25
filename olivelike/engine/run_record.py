"""The record of one run: versions, host, nodes with times and digests, sizes."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

from olivelike.engine.environment import host, versions
from olivelike.engine.output.output_record import OutputRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from olivelike.engine.execute.driver import NodeResult
    from olivelike.engine.plan import Node, OpenedEmbedding, OpenedLora
    from olivelike.engine.preparation import Prepared
    from olivelike.engine.run import RunResult


def run_record(
    prepared: Prepared, result: RunResult, nodes: Sequence[NodeResult], error: str | None
) -> dict[str, Any]:
    """Return the record of a run as JSON values."""
    by_id = {node.id: node for node in prepared.nodes}
    workflow, command = prepared.workflow, prepared.options.command
    return {
        **_ended(result),
        "workflow": workflow.workflow.name,
        "file": str(workflow.path) if command is None else None,
        "command": command,
        "project": str(workflow.project_folder),
        "target": workflow.workflow.target.choice(),
        "source": dict(prepared.source.origin),
        "finished": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "error": error,
        "versions": versions(),
        "host": host(),
        "node_results": {node.id: node.status for node in nodes},
        "nodes_total": result.nodes,
        "elements": {name: found.elements for name, found in prepared.source.checkpoints.items()},
        "nodes": [_node(by_id[node.id], node) for node in nodes],
        "loras": [_lora(opened) for opened in prepared.additions.loras],
        "embeddings": [_embedding(opened) for opened in prepared.additions.embeddings],
        "source_files": _source_files(prepared),
        # After a failure a folder still holds what an earlier run wrote.
        "output_files": {str(path): _output_files(path) for path in result.outputs if result.status == "ok"},
        "previous": _previous(prepared.history, result.run_id),
    }


def _ended(result: RunResult) -> dict[str, Any]:
    """Return how the run ended; its report is made from the record."""
    ended = result.to_json()
    del ended["report"]
    return ended


def _lora(opened: OpenedLora) -> dict[str, Any]:
    lora = opened.lora
    return {
        **opened.origin,
        "weight": lora.weight,
        "weights": dict(lora.weights),
        "adapter": lora.adapter,
    }


def _embedding(opened: OpenedEmbedding) -> dict[str, Any]:
    vectors = {component: rows for component, (rows, _) in opened.shapes.items()}
    return {**opened.origin, "token": opened.token, "vectors": vectors}


def _source_files(prepared: Prepared) -> dict[str, int]:
    """Return the bytes of each weight file that is there."""
    files: dict[str, int] = {}
    for checkpoint in prepared.source.checkpoints.values():
        for path in checkpoint.files:  # A single file has all components.
            with contextlib.suppress(OSError):
                files[f"{path.parent.name}/{path.name}"] = path.stat().st_size
    return files


def _output_files(folder: Path) -> dict[str, int]:
    """Return the bytes of each file of an output as its own record has them."""
    record = OutputRecord.read(folder)
    return {} if record is None else {name: facts["size"] for name, facts in record.files.items()}


def _node(node: Node, result: NodeResult) -> dict[str, Any]:
    """Return how a node ended, without what the output's own record holds: a derivation per initializer."""
    ended = result.to_json()
    facts = {name: value for name, value in ended["facts"].items() if name != "derivations"}
    output = str(node.output.path) if node.output is not None else None
    return {"parent": node.parent, "output": output, **ended, "facts": facts}


def _previous(history: Iterable[Mapping[str, Any]], run_id: str) -> dict[str, Any] | None:
    """Return what the last run of the workflow that ended well was like; `None` if there is none."""
    for record in history:
        if record.get("status") == "ok" and record.get("run_id") != run_id:
            nodes = record.get("nodes", ())
            return {
                **{name: record.get(name) for name in ("run_id", "finished", "seconds", "target", "source")},
                "nodes": {node["id"]: [node["status"], node["seconds"]] for node in nodes},
                "output_bytes": {
                    path: sum(files.values()) for path, files in record.get("output_files", {}).items()
                },
            }
    return None
