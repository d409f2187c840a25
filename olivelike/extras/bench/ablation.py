"""`ablate`: the variants of a sweep made, measured and compared with torch, network by network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from olivelike._table import Table
from olivelike._text import did_you_mean
from olivelike._untrusted import Json, JsonView
from olivelike.engine.execute.events import Event, Listener
from olivelike.engine.plan.node import Node
from olivelike.engine.preparation import make_resolver, prepare
from olivelike.engine.prepared import DEFAULTS, Options, Prepared
from olivelike.engine.run import ReportWriter, run
from olivelike.engine.run_result import RunResult
from olivelike.errors import (
    DamagedError,
    MissingError,
    OlivelikeError,
    PassError,
    SessionError,
    UsageError,
    VerificationError,
)
from olivelike.extras.bench import measure_folders
from olivelike.extras.bench.fidelity import Method, compare_methods
from olivelike.families import TOKENIZERS, denoiser_among
from olivelike.graphs.inspect.inspection import inspect_model
from olivelike.graphs.inspect.quantised import shares
from olivelike.measure.result_rows import FidelityReport
from olivelike.model.components import MODEL_FILE, PIPELINE
from olivelike.model.records.run_record import NodeRecord
from olivelike.runtime.pipeline.pipeline_folder import target_settings
from olivelike.runtime.sessions.session import check_dimensions
from olivelike.runtime.sessions.session_settings import SessionSettings, choose_providers
from olivelike.workflow.places import Place

_OPEN = 2.5
"""Resident memory of an open network, relative to its files: ONNX Runtime packs weights into copies."""


@dataclass(frozen=True)
class VariantRow:
    """One network of one variant; `None` for what is not known."""

    variant: str
    component: str
    precision: str | None = None
    """Precision of the graph: `fp32` or `fp16`."""
    size_bytes: int | None = None
    """Size of its files."""
    average_latency: float | None = None
    """In seconds."""
    median_latency: float | None = None
    memory_bytes: int | None = None
    """The most that its process had resident."""
    device_memory_bytes: int | None = None
    relative_error: float | None = None
    """Largest error against torch, over outputs and inputs."""
    worst: float | None = None
    cosine: float | None = None
    nan: int | None = None
    inf: int | None = None
    verified: bool | None = None
    """Whether its step `verify` let it pass."""
    provider: str | None = None
    note: str = ""
    """Reason that something is not known."""
    weights: str | None = None
    """Share of each type in the weights of a quantised graph."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Ablation:
    """Costs of a workflow's variants."""

    workflow: str
    """Its name."""
    rows: tuple[VariantRow, ...]
    error: OlivelikeError | None = None
    """Error that stopped a variant; its rows say which."""
    fidelity: FidelityReport | None = None
    """Pictures of the variants, the first one the reference, if they were asked for."""

    def to_json(self) -> Json:
        """Return the name and the rows as JSON values."""
        found = {"workflow": self.workflow, "rows": [row.to_json() for row in self.rows]}
        return found if self.fidelity is None else {**found, "fidelity": self.fidelity.to_json()}

    def to_csv(self) -> str:
        """Return the rows as the text of a CSV file, with all columns."""
        names = [field.name for field in fields(VariantRow)]
        return Table(names, [tuple(row.to_json().values()) for row in self.rows]).csv()


def ablate(
    ref: str | Path | Place,
    options: Options = DEFAULTS,
    listener: Listener = lambda _: None,
    report: ReportWriter | None = None,
    *,
    components: Collection[str] = (),
    measure: bool = True,
    runs: int = 10,
    warmup: int = 2,
    sizes: Mapping[str, int] | None = None,
    providers: Sequence[str] = (),
    pictures: int = 0,
    made: Callable[[RunResult], None] = lambda _: None,
) -> Ablation:
    """Make the variants of a workflow's `sweep`, and say what each costs.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: As for `run`; variants go on when another one fails.
        listener: Receives every event of the run.
        report: As for `run`.
        components: Networks to show; by default `unet`, or the first one that is in every variant.
        measure: Whether to measure latency and memory on this machine.
        runs: Measured runs of each variant.
        warmup: Runs before them.
        sizes: Of dynamic dimensions, by name.
        providers: What to measure on, as `NAME` or `NAME:KEY=VALUE,...`; by default the workflow's target.
        pictures: So many pictures by each variant that is a whole pipeline, compared with those of the first one.
        made: Is told how the run ended, before anything is measured.

    Raises:
        UsageError: if the workflow has no sweep, no variant has a component, or no network a dimension.
        OlivelikeError: as `run`, where no step of a variant is what failed.
    """
    chosen = replace(options, keep_going=True)
    prepared = prepare(ref, chosen, writes=False)
    verified_rows(prepared, components)  # What is wrong with the question is told before the answer is made.
    sessions = choose_providers(target_settings(prepared.workflow.workflow.target.choice()), providers)
    run_id, error = "", None

    def listen(event: Event) -> None:
        nonlocal run_id
        run_id = event.data.get("run_id", run_id)
        listener(event)

    try:
        made(run(ref, chosen, listen, report))
    except (MissingError, PassError, VerificationError) as failure:
        error = failure
    prepared = prepare(ref, chosen, writes=False)
    results: dict[str, NodeRecord] = {}
    if error is not None:
        mine = [record for record in prepared.history if record.run_id == run_id]
        results = {node.id: node for record in mine for node in record.nodes}
        if not any(result.status == "failed" for result in results.values()):
            raise error
    rows = verified_rows(prepared, components, results)
    if measure:
        rows = measured_rows(rows, prepared, sessions, sizes=sizes or {}, runs=runs, warmup=warmup)
    fidelity = _fidelity(rows, prepared, sessions, pictures) if pictures else None
    return Ablation(prepared.workflow.workflow.name, tuple(rows), error, fidelity)


def _fidelity(
    rows: Sequence[VariantRow], prepared: Prepared, sessions: SessionSettings, pictures: int
) -> FidelityReport | None:
    published = {row.variant for row in rows if row.size_bytes is not None}
    variants = [Method(str(output.variant), output.path) for output in prepared.outputs if output.variant in published]
    if not variants:
        return None
    return compare_methods(variants[0].folder, variants[1:], pictures=pictures, sessions=sessions)


def verified_rows(
    prepared: Prepared, components: Collection[str] = (), results: Mapping[str, NodeRecord] | None = None
) -> list[VariantRow]:
    """Return a row for each variant and network, with size and figures of its last step `verify`.

    Raises `UsageError` if the workflow has no sweep, or no variant has a component.

    Args:
        components: Networks to show; by default `unet`, or the first one that is in every variant.
        results: How its nodes ended, by id, if one of them failed.
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
        if node.output is None or node.component not in shown:
            continue
        assert node.output.variant is not None
        row = VariantRow(node.output.variant, node.component)
        row = _with_figures(row, node, nodes, facts)
        if row.variant in stopped:  # Its folder, if there is one, is of an earlier run.
            row = replace(row, note=stopped[row.variant])
        else:
            folder = node.output.path / node.component
            row = replace(row, size_bytes=_size(folder), weights=_weights(folder))
        rows.append(row)
    order = {
        (variant, component): (shown.index(component), index)
        for index, variant in enumerate(variants)
        for component in shown
    }
    return sorted(rows, key=lambda row: order[row.variant, row.component])


def measured_rows(
    rows: Sequence[VariantRow],
    prepared: Prepared,
    sessions: SessionSettings,
    *,
    sizes: Mapping[str, int],
    runs: int,
    warmup: int,
) -> list[VariantRow]:
    """Return the rows with latency and memory; the variants of a network take turns if they fit into memory together.

    Raises `UsageError` for numbers that can't be had, or a dimension that no network has. `sizes` are those of
    dynamic dimensions, by name.
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
            for variant, result in measure_folders(folders, sessions, sizes=sizes, runs=runs, warmup=warmup).items():
                index = next(i for i, row in enumerate(found) if (row.variant, row.component) == (variant, component))
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
        if node.output is None and node.component != PIPELINE:
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
    present = list(prepared.source.checkpoints)
    for name in components:
        if name not in present:
            raise UsageError(
                f"--component {name}: no variant has such a network; {did_you_mean(name, present, 'networks')}"
            )
    if components:
        return list(dict.fromkeys(components))
    everywhere = [name for name in present if all(name in v.steps for v in prepared.workflow.variants.values())]
    denoiser = denoiser_among(everywhere)
    return [denoiser] if denoiser else (everywhere or present)[:1]


def _stored_facts(prepared: Prepared) -> dict[str, JsonView]:
    """Return the facts of each node whose result is stored."""
    resolver = make_resolver(prepared)
    found: dict[str, JsonView] = {}
    for node in prepared.nodes:
        if node.component in TOKENIZERS:
            continue
        try:
            action = resolver.resolve(node).action
        except DamagedError:  # The next run remakes it.
            continue
        if action is not None:
            resolver.record_outputs(node, action.outputs)
            found[node.id] = action.facts
    return found


def _with_figures(row: VariantRow, node: Node, nodes: Mapping[str, Node], facts: Mapping[str, JsonView]) -> VariantRow:
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


def _weights(folder: Path) -> str | None:
    """Return which share of a network's weights is in which type, if any are quantised."""
    path = folder / MODEL_FILE
    return (shares(inspect_model(path, targets=()).kept_weights) or None) if path.is_file() else None


def _groups(rows: Sequence[VariantRow]) -> list[list[VariantRow]]:
    """Put rows together that can be in memory at the same time."""
    import psutil

    needed = sum(row.size_bytes or 0 for row in rows) * _OPEN
    return [list(rows)] if needed < psutil.virtual_memory().available / 2 else [[row] for row in rows]
