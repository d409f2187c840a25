"""A run's record as values. Any pass may leave any facts, so whatever is not as expected counts as absent."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
    seconds: float
    peak_memory_bytes: float
    error: str
    log: str
    facts: Mapping[str, Any]

    @property
    def has_run(self) -> bool:
        """Whether it took time in this run."""
        return self.status == "executed"


@dataclass(frozen=True)
class RunReport:
    """What is known of a run."""

    run_id: str
    workflow: str
    file: str
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
                number(node.get("seconds")),
                number(node.get("peak_memory_bytes")),
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
