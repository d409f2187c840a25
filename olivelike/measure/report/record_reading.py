"""A run's record as values. Any pass may leave any facts, so whatever is not as expected counts as absent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class NodeReport:
    """How one node of a run ended."""

    id: str
    component: str
    name: str
    """Of its pass, or `load`, `materialize`, `assets`."""
    parent: str | None
    status: str
    """`hit`, `executed`, `failed` or `skipped`."""
    reason: str
    start_seconds: float | None
    """From the beginning of the run; `None` of what did not run, and in records of earlier versions."""
    seconds: float
    peak_memory_bytes: float
    memory_before_bytes: float
    """What its worker held as it began; 0 in records of earlier versions."""
    output: str
    """The folder that it writes, if it does."""
    error: str
    log: str
    facts: Mapping[str, Any]

    @property
    def has_run(self) -> bool:
        """Whether it took time in this run."""
        return self.status == "executed"


@dataclass(frozen=True)
class Earlier:
    """The run before, as far as the record tells."""

    finished: str
    seconds: float
    node_seconds: Mapping[str, float]
    """Of all nodes; 0 of those that did not run."""
    ran: int
    output_bytes: Mapping[str, float]
    """By output folder."""
    target: Mapping[str, Any]
    source: Mapping[str, Any]


@dataclass(frozen=True)
class RunReport:
    """What is known of a run."""

    run_id: str
    workflow: str
    file: str
    command: str
    """What was typed in place of a workflow file."""
    status: str
    finished: str
    seconds: float
    peak_memory_bytes: float
    error: str
    outputs: tuple[str, ...]
    target: Mapping[str, Any]
    source: Mapping[str, Any]
    source_files: Mapping[str, Any]
    """Bytes by file."""
    output_files: Mapping[str, Any]
    """By output folder: bytes by file."""
    loras: tuple[Any, ...]
    embeddings: tuple[Any, ...]
    versions: Mapping[str, Any]
    host: Mapping[str, Any]
    nodes: tuple[NodeReport, ...]
    """By component, parents first."""
    earlier: Earlier | None

    def count(self, status: str) -> int:
        """Return how many nodes ended so."""
        return sum(node.status == status for node in self.nodes)


def read_run(record: Mapping[str, Any]) -> RunReport:
    """Return a record as values; records of earlier versions lack some."""
    outputs = record.get("output")
    return RunReport(
        text(record.get("run_id")),
        text(record.get("workflow")) or "a run",
        text(record.get("file")),
        text(record.get("command")),
        text(record.get("status")),
        text(record.get("finished")),
        number(record.get("seconds")),
        number(record.get("peak_memory_bytes")),
        text(record.get("error")),
        tuple(text(path) for path in (outputs if isinstance(outputs, list) else [outputs]) if text(path)),
        mapping(record.get("target")),
        mapping(record.get("source")),
        mapping(record.get("source_files")),
        mapping(record.get("output_files")),
        sequence(record.get("loras")),
        sequence(record.get("embeddings")),
        mapping(record.get("versions")),
        mapping(record.get("host")),
        _nodes(record),
        _earlier(mapping(record.get("previous"))),
    )


def _earlier(found: Mapping[str, Any]) -> Earlier | None:
    if not found:
        return None
    nodes = {name: sequence(entry) for name, entry in mapping(found.get("nodes")).items()}
    return Earlier(
        text(found.get("finished")),
        number(found.get("seconds")),
        {name: number(entry[1]) if len(entry) > 1 else 0 for name, entry in nodes.items()},
        sum(entry[:1] == ("executed",) for entry in nodes.values()),
        {path: number(count) for path, count in mapping(found.get("output_bytes")).items()},
        mapping(found.get("target")),
        mapping(found.get("source")),
    )


def _nodes(record: Mapping[str, Any]) -> tuple[NodeReport, ...]:
    found: list[NodeReport] = []
    last: dict[str, str] = {}
    for node in map(mapping, sequence(record.get("nodes"))):
        component = text(node.get("component"))
        # Records of the first version do not name parents: their chains had no branches.
        parent = text(node["parent"]) if "parent" in node else last.get(component, "")
        found.append(
            NodeReport(
                text(node.get("id")),
                component,
                text(node.get("name")),
                parent or None,
                text(node.get("status")),
                text(node.get("reason")),
                number(node["start_seconds"]) if is_number(node.get("start_seconds")) else None,
                number(node.get("seconds")),
                number(node.get("peak_memory_bytes")),
                number(node.get("memory_before_bytes")),
                text(node.get("output")),
                text(node.get("error")),
                text(node.get("log")),
                mapping(node.get("facts")),
            )
        )
        last[component] = found[-1].id
    rank = {
        component: place for place, component in enumerate(dict.fromkeys(node.component for node in found))
    }
    return tuple(sorted(found, key=lambda node: rank[node.component]))


def text(value: Any) -> str:
    """Return a text, or the empty one for anything else."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float:
    """Return a finite number, or 0 for anything else."""
    return value if is_number(value) else 0


def is_number(value: Any) -> bool:
    """Say whether a JSON value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a map, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> tuple[Any, ...]:
    """Return a list, or an empty one for anything else."""
    return tuple(value) if isinstance(value, list) else ()


def shown(value: Any) -> str:
    """Return any JSON value as short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < _LONGEST else f"{value:.3e}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {shown(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return ", ".join(shown(entry) for entry in value)
    return "" if value is None else str(value)


_LONGEST = 10**18


def moment(value: str) -> str:
    """Return a time in ISO 8601 as people write it: `22 November 2026, 04:27 UTC`."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{found.day} {found:%B %Y, %H:%M} {found:%Z}".rstrip()
