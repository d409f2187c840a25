"""The record of one run in the store: versions, host, nodes with times and digests, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from olivelike._untrusted import Json
from olivelike.model.records.origin import EmbeddingRecord, LoraRecord, Origin, adapter_from_1, origin_from_1
from olivelike.model.records.reading import read_version, to_json
from olivelike.model.targets import TargetChoice


@dataclass(frozen=True)
class HostRecord:
    """The kind of machine of a run; nothing names it."""

    system: str = ""
    release: str = ""
    machine: str = ""
    cores: int | None = None
    memory_bytes: int = 0
    byteorder: str = ""


@dataclass(frozen=True)
class NodeRecord:
    """How one node of a run ended."""

    id: str
    component: str
    name: str
    """Name of its pass, or its kind: `load`, `materialize`, `assets`."""
    status: str
    """`hit`, `shelf`, `executed`, `failed` or `skipped`."""
    reason: str = ""
    parent: str | None = None
    output: str | None = None
    """The folder that it writes, if it does."""
    key: str | None = None
    inputs: Mapping[str, object] | None = None
    """Parts of the key, as `Key.inputs` gives it."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Digests of what it made, by facet."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Findings of the pass; any pass may leave any."""
    start_seconds: float | None = None
    """From the beginning of the run; `None` of what did not run, and in records of earlier versions."""
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    """The most that its worker had resident, with what that had before."""
    memory_before_bytes: int = 0
    """Resident memory of its worker as it began; 0 in records of earlier versions."""
    error: str | None = None
    log: str | None = None
    host: str | None = None
    """The worker of a cluster that did it."""


@dataclass(frozen=True)
class EarlierNode:
    """How a node ended in the run before."""

    status: str
    seconds: float


@dataclass(frozen=True)
class EarlierRun:
    """The last run of the same workflow that ended well."""

    run_id: str
    finished: str
    seconds: float
    target: TargetChoice
    source: Origin
    nodes: Mapping[str, EarlierNode] = field(default_factory=dict)
    output_bytes: Mapping[str, int] = field(default_factory=dict)
    """By output folder."""


@dataclass(frozen=True)
class RunRecord:
    """Results, times and inputs of a run."""

    run_id: str
    workflow: str
    status: str
    """`ok`, `failed` or `interrupted`."""
    target: TargetChoice
    source: Origin
    finished: str = ""
    """When, in ISO 8601."""
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    """Peak of all processes together."""
    hits: int = 0
    executed: int = 0
    outputs: tuple[str, ...] = ()
    """Folders."""
    file: str | None = None
    """Path of the workflow."""
    command: str | None = None
    """Typed command, in place of a workflow file."""
    project: str | None = None
    """Folder that paths are shown relative to."""
    error: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    host: HostRecord = field(default_factory=HostRecord)
    elements: Mapping[str, int] = field(default_factory=dict)
    """Numbers in the weights of each component."""
    nodes: tuple[NodeRecord, ...] = ()
    loras: tuple[LoraRecord, ...] = ()
    embeddings: tuple[EmbeddingRecord, ...] = ()
    source_files: Mapping[str, int] = field(default_factory=dict)
    """Bytes by file."""
    output_files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By output folder: bytes by file."""
    previous: EarlierRun | None = None

    def to_json(self) -> Json:
        """Return the record as the store keeps it."""
        return {"version": len(_MIGRATIONS) + 1, **to_json(self)}

    @classmethod
    def from_json(cls, content: object) -> RunRecord:
        """Read what `to_json` returned, in this version or an earlier one.

        Raises `RecordError` if it is something else.
        """
        return read_version(cls, content, _MIGRATIONS)

    def count(self, status: str) -> int:
        """Return how many nodes ended so."""
        return sum(node.status == status for node in self.nodes)


def _from_1(content: Any) -> dict[str, object]:
    """Make version 2 of what 0.1.0 and its forerunners wrote, which lacks some."""
    dropped = {"output", "nodes_total", "node_results", "previous"}
    outputs, previous = content.get("output"), content.get("previous")
    found = {name: value for name, value in content.items() if name not in dropped}
    return {
        **found,
        "outputs": outputs if isinstance(outputs, list) else [outputs] if outputs else [],
        "source": origin_from_1(content["source"]),
        "nodes": _nodes_from_1(content["nodes"]),
        "loras": [adapter_from_1(entry) for entry in content.get("loras", ())],
        "embeddings": [adapter_from_1(entry) for entry in content.get("embeddings", ())],
        **({"previous": _earlier_from_1(previous)} if previous else {}),
    }


def _nodes_from_1(nodes: Any) -> list[dict[str, object]]:
    found, last = [], dict[str, str]()
    for node in nodes:
        # The first records do not name parents: their chains had no branches.
        found.append({"parent": last.get(node["component"]), **node})
        last[node["component"]] = node["id"]
    return found


def _earlier_from_1(content: Any) -> dict[str, object]:
    nodes = {name: {"status": status, "seconds": seconds} for name, (status, seconds) in content["nodes"].items()}
    return {**content, "source": origin_from_1(content["source"]), "nodes": nodes}


_MIGRATIONS = (_from_1,)
