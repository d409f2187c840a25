"""The rows of an ablation table: each variant's latency, memory and error, network by network."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from olivelike._text import did_you_mean
from olivelike.errors import DamagedError, SessionError, UsageError
from olivelike.measure.bench import measure_folders
from olivelike.model.components import MODEL_FILE, TOKENIZERS
from olivelike.runtime.sessions.model_file import check_dimensions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from olivelike.engine import Prepared
    from olivelike.engine.plan import Node
    from olivelike.model.records.run_record import NodeRecord
    from olivelike.runtime.sessions.session_settings import SessionSettings

_OPEN = 2.5
"""Resident memory of an open network, relative to its files: ONNX Runtime packs weights into copies."""


@dataclass(frozen=True)
class Row:
    """One network of one variant; `None` for what is not known."""

    variant: str
    component: str
    precision: str | None = None
    """Of the graph: `fp32` or `fp16`."""
    size_bytes: int | None = None
    """Of its files."""
    average_latency: float | None = None
    """In seconds."""
    median_latency: float | None = None
    memory_bytes: int | None = None
    """The most that its process had resident."""
    device_memory_bytes: int | None = None
    relative_error: float | None = None
    """Against torch: the largest over outputs and inputs."""
    worst: float | None = None
    cosine: float | None = None
    nan: int | None = None
    inf: int | None = None
    verified: bool | None = None
    """Whether its step `verify` let it pass."""
    provider: str | None = None
    note: str = ""
    """Why something is not known."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def verified_rows(
    prepared: Prepared,
    components: Collection[str] = (),
    results: Mapping[str, NodeRecord] | None = None,
) -> list[Row]:
    """Return a row for each variant and network, with size and figures of its last step `verify`.

    Args:
        prepared: The workflow after its run.
        components: Networks to show; by default `unet`, or the first one that is in every variant.
        results: How its nodes ended, by id, if one of them failed.

    Raises:
        UsageError: if the workflow has no sweep, or no variant has a component.
    """
    variants = [output.variant for output in prepared.outputs if output.variant is not None]
    if not variants:
        raise UsageError(
            f"{prepared.workflow.path}: has no `sweep`; add one, or run a workflow that has, such as ablation_sd15_cpu"
        )
    shown = _shown(prepared, components)
    failed = {name: result for name, result in (results or {}).items() if result.status == "failed"}
    facts = {**_stored_facts(prepared), **{name: result.facts for name, result in failed.items()}}
    nodes = {node.id: node for node in prepared.nodes}
    stopped = _stopped(prepared, nodes, failed)
    rows = []
    for node in prepared.nodes:
        if node.kind != "materialize" or node.component not in shown or node.output is None:
            continue
        assert node.output.variant is not None
        row = Row(node.output.variant, node.component)
        row = _with_figures(row, node, nodes, facts)
        if row.variant in stopped:  # Its folder, if there is one, is of an earlier run.
            row = replace(row, note=stopped[row.variant])
        else:
            row = replace(row, size_bytes=_size(node.output.path / node.component))
        rows.append(row)
    order = {
        (variant, component): (shown.index(component), index)
        for index, variant in enumerate(variants)
        for component in shown
    }
    return sorted(rows, key=lambda row: order[row.variant, row.component])


def measured_rows(
    rows: Sequence[Row],
    prepared: Prepared,
    sessions: SessionSettings,
    *,
    sizes: Mapping[str, int],
    runs: int,
    warmup: int,
) -> list[Row]:
    """Return the rows with latency and memory; the variants of a network take turns if they fit into memory together.

    Args:
        rows: What is to be measured.
        prepared: The workflow after its run.
        sessions: Provider, device and options.
        sizes: Of dynamic dimensions, by name.
        runs: Measured runs of each.
        warmup: Runs before them.

    Raises:
        UsageError: for numbers that can't be had, or a dimension that no network has.
    """
    outputs = {output.variant: output.path for output in prepared.outputs}
    found = list(rows)
    models = [outputs[row.variant] / row.component / MODEL_FILE for row in rows if row.size_bytes is not None]
    if models:
        check_dimensions(sizes, models)
    for component in dict.fromkeys(row.component for row in rows):
        mine = [row for row in rows if row.component == component and row.size_bytes is not None]
        for group in _groups(mine):
            folders = {row.variant: outputs[row.variant] / component for row in group}
            for variant, result in measure_folders(
                folders, sessions, sizes=sizes, runs=runs, warmup=warmup
            ).items():
                index = next(
                    i for i, row in enumerate(found) if (row.variant, row.component) == (variant, component)
                )
                if isinstance(result, SessionError):
                    found[index] = replace(found[index], note=str(result))
                    continue
                found[index] = replace(
                    found[index],
                    average_latency=result.average,
                    median_latency=result.median,
                    memory_bytes=result.peak_resident_bytes,
                    device_memory_bytes=result.peak_device_bytes,
                    provider=result.provider,
                )
    return found


def _stopped(prepared: Prepared, nodes: Mapping[str, Node], failed: Collection[str]) -> dict[str | None, str]:
    """Return why variants were not published, by name."""
    found: dict[str | None, dict[str, None]] = {}
    for node in prepared.nodes:
        if node.kind not in {"materialize", "assets"}:
            continue
        variants = [node.output.variant] if node.output else [output.variant for output in prepared.outputs]
        at: Node | None = node
        while at is not None and at.id not in failed:
            at = nodes.get(at.parent or "")
        if at is not None:
            for variant in variants:
                found.setdefault(variant, {})[at.id] = None
    return {variant: f"{variant} is not published: {', '.join(ids)} failed" for variant, ids in found.items()}


def _shown(prepared: Prepared, components: Collection[str]) -> list[str]:
    present = list(dict.fromkeys(node.component for node in prepared.nodes if node.kind == "load"))
    for name in components:
        if name not in present:
            raise UsageError(
                f"--component {name}: no variant has such a network; {did_you_mean(name, present, 'networks')}"
            )
    if components:
        return list(dict.fromkeys(components))
    everywhere = [
        name for name in present if all(name in v.steps for v in prepared.workflow.variants.values())
    ]
    return ["unet"] if "unet" in everywhere else (everywhere or present)[:1]


def _stored_facts(prepared: Prepared) -> dict[str, Mapping[str, Any]]:
    """Return the facts of each node whose result is stored."""
    resolver = prepared.resolver()
    found: dict[str, Mapping[str, Any]] = {}
    for node in prepared.nodes:
        if node.component in TOKENIZERS:
            continue
        try:
            action = resolver.resolve(node).action
        except DamagedError:  # The next run remakes it.
            continue
        if action is not None:
            resolver.settle(node, action.outputs)
            found[node.id] = action.facts
    return found


def _with_figures(
    row: Row, node: Node, nodes: Mapping[str, Node], facts: Mapping[str, Mapping[str, Any]]
) -> Row:
    """Return a row with the figures of the last step `verify` before a node."""
    parent = nodes.get(node.parent or "")
    while parent is not None and parent.name != "verify":
        parent = nodes.get(parent.parent or "")
    if parent is None:
        return replace(row, note="its chain has no step `verify`")
    figures = facts.get(parent.id, {}).get("verification")
    if figures is None:
        return replace(row, note=f"{parent.id} has no stored result")
    return replace(
        row,
        precision=figures["precision"],
        **{name: figures[name] for name in ("relative_error", "worst", "cosine", "nan", "inf")},
        verified=figures["passed"],
    )


def _size(folder: Path) -> int | None:
    """Return the bytes of a network's files; `None` if it was not published."""
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else None


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Put rows together that can be in memory at the same time."""
    import psutil

    needed = sum(row.size_bytes or 0 for row in rows) * _OPEN
    return [list(rows)] if needed < psutil.virtual_memory().available / 2 else [[row] for row in rows]
