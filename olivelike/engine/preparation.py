"""Preparing a workflow: the file loaded, its source and its store opened, its nodes placed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.errors import UsageError
from olivelike.output.state import OutputStates
from olivelike.plan import Resolver, build_nodes, make_plan
from olivelike.sources import RawTensor, SourceSpec, open_source
from olivelike.store import Store
from olivelike.workflow import default_cache_dir, load_workflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.plan import Node, Plan
    from olivelike.sources import PipelineSource
    from olivelike.workflow import LoadedWorkflow, Output

_HISTORY = 20
"""How many earlier runs of a workflow are looked at to explain a miss."""


@dataclass(frozen=True)
class Options:
    """What a front end may ask for, beside the workflow."""

    overrides: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    cache_dir: Path | None = None
    output: Path | None = None
    only: tuple[str, ...] = ()
    until: str | None = None
    keep_going: bool = False
    """Publish the outputs that are complete although another one failed."""
    workers: int | None = None
    """Worker processes; by default one per core, four at most."""
    memory_limit: int | None = None
    """Bytes that all nodes together may be expected to use; by default four fifths of what is free."""
    clean_cache: bool = False
    allow_pickle: bool = False


class History:
    """Run records of one workflow, newest first, read when first looked at."""

    def __init__(self, store: Store, workflow: str) -> None:
        self._store = store
        self._workflow = workflow

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records)

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for record in self._store.runs():
            if record.get("workflow") == self._workflow:
                found.append(record)
            if len(found) == _HISTORY:
                break
        return found


@dataclass
class Prepared:
    """A workflow with its source and store, ready to be planned."""

    workflow: LoadedWorkflow
    source: PipelineSource
    store: Store
    outputs: tuple[Output, ...]
    nodes: tuple[Node, ...]
    history: History
    options: Options = field(default_factory=Options)

    def resolver(self) -> Resolver:
        """Return a fresh resolver: it looks at the store and the outputs anew."""
        return Resolver(self.workflow, self.source, self.store, OutputStates(self.store))

    def plan(self) -> Plan:
        """Compute the plan; nothing changes."""
        return make_plan(self.nodes, self.resolver(), self.source, self.history)


def prepare(ref: str, options: Options, *, writes: bool) -> Prepared:
    """Load a workflow, open its source and its store.

    Args:
        ref: Path of a workflow file, or name of a shipped one.
        options: What the front end asks for.
        writes: False for a plan: an absent store counts as an empty one and nothing is created.

    Raises:
        WorkflowError: for a wrong workflow file.
        SourceError: for a missing or damaged source.
        StoreError: for a store that can't be used.
    """
    loaded = load_workflow(ref, options.overrides, options.plugins)
    outputs = _outputs(loaded, options)
    nodes = build_nodes(loaded, outputs, options.only, options.until)
    store = Store.open(options.cache_dir or default_cache_dir(loaded), create=writes)
    spec = loaded.workflow.source
    components = [node.component for node in nodes if node.kind == "load"]
    source = open_source(
        SourceSpec(spec.path, spec.hub, spec.revision, spec.variant),
        components,
        allow_pickle=options.allow_pickle,
        read_pickle=lambda path: _remembered_pickle_table(path, store),
    )
    return Prepared(loaded, source, store, outputs, nodes, History(store, loaded.workflow.name), options)


def plan(ref: str, options: Options) -> tuple[Prepared, Plan]:
    """Plan a workflow; computing the plan has no side effects."""
    prepared = prepare(ref, options, writes=False)
    return prepared, prepared.plan()


def _remembered_pickle_table(path: Path, store: Store) -> dict[str, RawTensor]:
    """Return the table of a pickled file; reading one takes a process that imports torch, so it is remembered."""
    digest = store.file_digest(path)
    known = store.recall_json("pickle", digest)
    if known is None:
        from olivelike.sources.pickled import read_pickle_table

        known = {name: [t.dtype, list(t.shape), t.offset] for name, t in read_pickle_table(path).items()}
        if store.writable:
            store.remember_json("pickle", digest, known)
    return {name: RawTensor(dtype, tuple(shape), offset) for name, (dtype, shape, offset) in known.items()}


def _outputs(loaded: LoadedWorkflow, options: Options) -> tuple[Output, ...]:
    outputs = loaded.workflow.outputs
    if options.output is None:
        return outputs
    if len(outputs) > 1:
        raise UsageError("--output needs a workflow with one output; this one has several under `outputs:`")
    return (replace(outputs[0], path=Path(os.path.abspath(options.output))),)  # noqa: PTH100  (links stay)
