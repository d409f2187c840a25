"""Preparing a workflow: the file loaded, its source and its store opened, its nodes placed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._text import size
from olivelike.engine.execute.sharing import Unshared, open_for_looking, shared_backend
from olivelike.engine.output.admission import check_apart
from olivelike.engine.output.license_notes import passing_on
from olivelike.engine.output.output_files import OutputStates
from olivelike.engine.output.pipeline_files import has_onnx_pipeline
from olivelike.engine.plan.adapters import check_adapters, open_adapters
from olivelike.engine.plan.building import active_steps, build_nodes
from olivelike.engine.plan.chains import check_chains, check_scheduler, check_without_source
from olivelike.engine.plan.inputs import Inputs
from olivelike.engine.plan.planner import Plan, make_plan
from olivelike.engine.plan.resolver import Resolver
from olivelike.engine.prepared import DEFAULTS, EarlierRuns, History, Options, Prepared
from olivelike.engine.run_result import host, readable_runs
from olivelike.errors import StoreError, UsageError
from olivelike.families import TOKENIZERS, family_of_folder
from olivelike.families.networks.unet import COMPONENT
from olivelike.graphs.shelf import open_shelf
from olivelike.model.client_layouts import DEFAULT, LAYOUTS
from olivelike.model.records.output import RECORD_FILE
from olivelike.sources import PipelineSource, RawTensor, SourceSpec, open_source
from olivelike.sources.fit import check_fit, lacking
from olivelike.store import Store
from olivelike.workflow import LoadedWorkflow, Output, default_cache_dir, load_workflow
from olivelike.workflow.places import Place, may_be_path

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.engine.plan.forecast import Forecast
    from olivelike.workflow import Guide, Source, Vae
    from olivelike.workflow.workflow_file import Workflow

_PICKLE_TABLE = "pickle/2"
"""Kind of remembered table; the first did not know of compressed archives."""
_RECENT = 40
"""Number of earlier runs, of any workflow, that tell how long nodes take."""


@dataclass(frozen=True)
class Pin:
    """Results that are kept."""

    name: str
    """The workflow's."""
    keys: tuple[str, ...]
    """Keys of its stored results."""
    store: str
    """The store's folder, or the URL of a shared one."""
    missing: tuple[str, ...] = ()
    """Nodes whose result is not stored there, and so not kept."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        return {**asdict(self), "keys": list(self.keys), "missing": list(self.missing)}


def make_resolver(prepared: Prepared, sharing: Unshared | None = None) -> Resolver:
    """Return a fresh resolver: it looks at the store and the outputs anew."""
    elsewhere = (sharing or Unshared()).content
    inputs = Inputs(prepared.workflow, prepared.source, prepared.adapters, prepared.store, open_shelf(), elsewhere)
    return Resolver(inputs, OutputStates(prepared.store))


def plan_prepared(prepared: Prepared, *, here: bool = False) -> Plan:
    """Compute the plan; nothing changes. With `here`, what only a shared store has does not count."""
    given = prepared.options.sharing
    sharing = given or open_for_looking(None if here else prepared.shared, prepared.store)
    try:
        resolver = make_resolver(prepared, sharing)
        found = make_plan(prepared.nodes, resolver, prepared.source, prepared.history, sharing)
        return replace(found, warnings=(*warnings_of(prepared), *_memory_warning(found, prepared), *found.warnings))
    finally:
        if sharing is not given:
            sharing.close(hurry=True)


def _memory_warning(found: Plan, prepared: Prepared) -> Iterator[str]:
    """Yield which node that is to run takes more memory than all of them may."""
    limit = prepared.options.memory_limit
    most = max((one for one in found.nodes if one.status == "miss"), key=lambda one: one.memory_bytes, default=None)
    if limit is not None and most is not None and most.memory_bytes > limit:
        yield (
            f"{most.node.id} is expected to take {size(most.memory_bytes)} of memory, and --memory-limit is "
            f"{size(limit)}: it runs alone, and takes what it needs; allow that much, or run it on a larger machine"
        )


def warnings_of(prepared: Prepared) -> tuple[str, ...]:
    """Return what is to be said before anything runs: what is lacking, what nothing is made of, who can't load it."""
    source = prepared.source
    stale, absent = source.origin.warning, lacking(source)
    told = f"{source.origin.place}: it has no {' and no '.join(absent)}, so its output alone draws no pictures"
    layouts = _layout_warnings(prepared)
    found = [stale, *source.left_out, source.guess, told if absent else None]
    return (*filter(None, found), *layouts, *_license_warnings(prepared))


def _layout_warnings(prepared: Prepared) -> Iterator[str]:
    """Yield which outputs their clients can't load."""
    made, options = {node.component for node in prepared.nodes}, prepared.options
    for output in prepared.outputs if options.until is None and not options.only else ():
        for name in LAYOUTS[output.layout].needed:
            if name not in made:
                yield (
                    f"{output.path.name} will have no {name}, and {output.layout} can't load a folder without one; "
                    f"use a source that has it, with {name} in `components`, or another layout"
                )


def _license_warnings(prepared: Prepared) -> Iterator[str]:
    """Yield what licences say against what the workflow states, and against layouts that are made to be passed on."""
    origins = [origin for _, origin in prepared.origins]
    for origin in origins:
        if origin.license is not None and origin.license.otherwise is not None:
            yield (
                f"{origin.place}: its files say that it is under {origin.license.otherwise}, and the workflow says "
                f"{origin.license.name}, which is recorded; take out `license:` if you were given no other"
            )
    layouts = dict.fromkeys(output.layout for output in prepared.outputs if LAYOUTS[output.layout].package)
    if layouts and prepared.options.until is None:
        yield from passing_on(origins, f"layout {' and '.join(layouts)}")


def forecast(prepared: Prepared) -> Forecast:
    """Return how long nodes are expected to take, from what runs on a machine like this one took."""
    from olivelike.engine.plan.forecast import Forecast

    here = replace(host(), release="")  # What does not change when the system is brought up to date.
    latest = prepared.history.latest(_RECENT)
    recent = (record for record in latest if replace(record.host, release="") == here)
    options = prepared.options
    return Forecast(prepared.nodes, prepared.source, recent, worker_count(options), memory_limit(options))


def memory_limit(options: Options) -> int:
    """Return how much memory all nodes together may be expected to use now, in bytes."""
    from olivelike._memory import default_limit

    return options.memory_limit or default_limit()


def worker_count(options: Options) -> int:
    """Return how many worker processes there are at most."""
    return options.workers or min(4, os.cpu_count() or 1)


def prepare(ref: str | Path | Place, options: Options, *, writes: bool) -> Prepared:
    """Load a workflow, open its source and its store.

    Args:
        ref: Path of a workflow file, name of a shipped one, or a place that brings its own text.
        writes: False for a plan: an absent store counts as an empty one and nothing is created.

    Raises:
        WorkflowError: for a wrong workflow file.
        UsageError: for an output that meets the source, or anything else that is read.
        SourceError: for a missing or damaged source.
        StoreError: for a store that can't be used.
    """
    loaded = _load(ref, options)
    outputs = _outputs(loaded, options)
    _check_variants(outputs)
    shared = shared_backend(options.shared_cache)
    store = Store.open(options.cache_dir or default_cache_dir(loaded), create=writes)

    def read_pickle(path: Path) -> dict[str, RawTensor]:
        return _remembered_pickle_table(path, store)

    adapters = open_adapters(loaded, read_pickle if options.allow_pickle else None)
    steps = active_steps(loaded, outputs, adapters, options.only)
    nodes = build_nodes(loaded, outputs, steps, options.until)
    source = open_source(
        workflow_spec(loaded.workflow),
        dict.fromkeys(name for chains in steps.values() for name in chains if name not in TOKENIZERS),
        allow_pickle=options.allow_pickle,
        read_pickle=read_pickle,
    )
    if options.until is None:
        check_apart(outputs, loaded, source, adapters, store)
    check_adapters(adapters, loaded, source)
    check_chains(loaded, steps, source, materialized=options.until is None)
    check_fit(source)
    _check_layouts(outputs, source, scheduler_model=loaded.workflow.scheduler_model)
    check_scheduler(source)
    source = source.distilled(adapters.few_steps)
    history = History(options.earlier or EarlierRuns(readable_runs(store)), loaded.workflow.name)
    return Prepared(loaded, source, adapters, store, outputs, nodes, history, options, shared)


def _check_layouts(outputs: Sequence[Output], source: PipelineSource, *, scheduler_model: bool) -> None:
    """Raise `UsageError` for a layout whose client has no loop for the source's denoiser, or no file of schedules."""
    layouts = [LAYOUTS[output.layout] for output in outputs]
    if scheduler_model and layouts and not any(one.is_pipeline or one.package for one in layouts):
        raise UsageError(
            f"scheduler_model: a folder of layout {layouts[0].name} is no pipeline with a scheduler beside it; leave "
            f"the key out, or take layout {DEFAULT}"
        )
    family = family_of_folder(source.index, source.checkpoints, {})
    if family.denoiser == COMPONENT:
        return
    is_known = has_onnx_pipeline(str(source.index.get("_class_name")))
    if not is_known and (ort := next((one for one in layouts if one.pipeline_prefix == "ORT"), None)) is not None:
        raise UsageError(
            f"layout {ort.name}: optimum has no pipeline of {family.title}; take layout {DEFAULT}, which "
            "`olivelike generate` draws from"
        )


def workflow_spec(workflow: Workflow) -> SourceSpec:
    """Return what `open_source` wants to know of a workflow."""
    return source_spec(workflow.source, workflow.vae, workflow.preview, workflow.guides)


def source_spec(
    source: Source, vae: Vae | None, preview: Vae | None = None, guides: Mapping[str, Sequence[Guide]] | None = None
) -> SourceSpec:
    """Return what `open_source` wants to know of a workflow's source, and of what comes beside it.

    That is another VAE, a tiny VAE for previews, and guides by key.
    """
    return replace(
        source.spec(),
        vae=None if vae is None else vae.spec(),
        preview=None if preview is None else preview.spec(),
        guides={key: tuple(one.spec() for one in some) for key, some in (guides or {}).items()},
    )


def plan(ref: str | Path | Place, options: Options = DEFAULTS) -> tuple[Prepared, Plan]:
    """Plan a workflow; computing the plan has no side effects.

    Args:
        ref: Path of a workflow file, name of a shipped one, or a place that brings its own text.
        options: What the front end asks for.

    Returns:
        The workflow with its source and store, and its nodes, each with key, status and reason.

    Raises:
        OlivelikeError: as `prepare`.
    """
    prepared = prepare(ref, options, writes=False)
    return prepared, plan_prepared(prepared)


def validate(ref: str | Path | Place, options: Options = DEFAULTS) -> LoadedWorkflow:
    """Load a workflow and check all that can be checked without its source.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: Of which `overrides`, `plugins`, `loras`, `allow_plugins` and `ask_plugins` count.

    Raises:
        WorkflowError: with everything that is wrong, each with its position.
        PluginError: if a plugin can't be loaded.
    """
    loaded = _load(ref, options)
    check_without_source(loaded)
    return loaded


def pin(ref: str | Path | Place, options: Options = DEFAULTS) -> Pin:
    """Keep what is stored of a workflow from being collected, under the workflow's name.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: As for `plan`; with a `shared_cache` the results there are kept, not those of this machine.

    Raises:
        StoreError: if nothing of it is stored; an earlier pin stays as it was.
        OlivelikeError: as `prepare`.
    """
    prepared = prepare(ref, options, writes=True)
    there = prepared.shared if options.shared_cache is not None else None
    if there is not None:
        there.require()
        if not there.writable:
            raise UsageError(f"{there} may only be read, so nothing can be pinned there; take another URL")
    keys: list[str] = []
    missing: list[str] = []
    for planned in plan_prepared(prepared, here=there is None).nodes:
        if planned.node.output is not None or planned.status in {"shelf", "uncached"}:
            continue  # No store has, or needs, a result of it.
        key = None if planned.key is None else planned.key.digest
        if key is not None and (planned.status == "hit" if there is None else there.has(key)):
            keys.append(key)
        else:
            missing.append(planned.node.id)
    name, where = prepared.workflow.workflow.name, str(prepared.store.root if there is None else there)
    if missing and not keys:
        remedy = "run it first" if there is None else "give it with `olivelike cache push`, or run with it, first"
        raise StoreError(f"{where} has no result of {name}, so there is nothing to pin; {remedy}")
    if there is None:
        prepared.store.pin(name, keys)
    else:
        there.pin(name, keys)
    return Pin(name, tuple(keys), where, tuple(missing))


def _load(ref: str | Path | Place, options: Options) -> LoadedWorkflow:
    return load_workflow(
        ref,
        options.overrides,
        options.plugins,
        options.loras,
        combination=options.combination,
        allow_plugins=options.allow_plugins,
        ask=options.ask_plugins,
    )


def _remembered_pickle_table(path: Path, store: Store) -> dict[str, RawTensor]:
    """Return the table of a pickled file; reading one takes a process that imports torch, so it is remembered."""
    digest = store.file_digest(path)
    known = store.recall_json(_PICKLE_TABLE, digest)
    if known is None:
        from olivelike.sources.files.pickled import read_pickle_table

        known = {name: [t.dtype, list(t.shape), t.offset] for name, t in read_pickle_table(path).items()}
        if store.writable:
            store.remember_json(_PICKLE_TABLE, digest, known)
    return {name: RawTensor(dtype, tuple(shape), offset) for name, (dtype, shape, offset) in known.items()}


def _check_variants(outputs: Sequence[Output]) -> None:
    """Refuse to put variants into the folder of a pipeline, which a run replaces as a whole."""
    for output in outputs:
        if output.variant is not None and (output.path.parent / RECORD_FILE).exists():
            raise UsageError(
                f"{output.path.parent} is the output of a workflow without `sweep`; choose another `output` for the "
                "variants"
            )


def _outputs(loaded: LoadedWorkflow, options: Options) -> tuple[Output, ...]:
    outputs = loaded.workflow.outputs
    if options.output is None:
        return outputs
    if not may_be_path(str(options.output)):
        raise UsageError("--output is no path: it holds a null character; name a folder")
    folder = Path(os.path.abspath(options.output))  # noqa: PTH100  (links stay)
    folder = folder / (loaded.combination or "")
    if loaded.sweep:
        return tuple(replace(output, path=folder / (output.variant or "")) for output in outputs)
    if len(outputs) > 1:
        raise UsageError("--output needs a workflow with one output; this one has several under `outputs:`")
    return (replace(outputs[0], path=folder),)
