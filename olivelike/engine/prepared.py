"""A workflow with its source and store opened, as a value; with what a front end asks for, and what ran before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from threading import Lock
from typing import TYPE_CHECKING, Final

from olivelike._files import hold_paths
from olivelike.model.records.origin import Origin, all_origins

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.engine.execute.sharing import Backend, Unshared
    from olivelike.engine.plan.adapters import Adapters
    from olivelike.engine.plan.node import Node
    from olivelike.model.records.run_record import RunRecord
    from olivelike.sources import PipelineSource
    from olivelike.store import Store
    from olivelike.workflow import LoadedWorkflow, Output
    from olivelike.workflow.matrix import Combination
    from olivelike.workflow.passes.allowed_plugins import Ask

_HISTORY = 20
"""Number of earlier runs of a workflow that are looked at to explain a miss."""


@dataclass(frozen=True)
class Options:
    """Wishes of a front end, beside the workflow."""

    overrides: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    """`FILE` or `FILE:WEIGHT`, on top of those of the workflow."""
    plugins: tuple[str, ...] = ()
    allow_plugins: bool = False
    """Run plugins that workflow files name, whether or not they were allowed before."""
    ask_plugins: Ask | None = None
    """Asks about those that were not; without it they are refused."""
    cache_dir: Path | None = None
    shared_cache: str | None = None
    """URL of a store that several machines share; by default `$OLIVELIKE_SHARED_CACHE`."""
    output: Path | None = None
    combination: str | Combination | None = None
    """Combination of the workflow's `matrix`, or its name."""
    only: tuple[str, ...] = ()
    until: str | None = None
    keep_going: bool = False
    """Publish the outputs that are complete although another one failed."""
    fail_fast: bool = False
    """Stop everything as soon as a node failed; by default what does not need it goes on."""
    workers: int | None = None
    """Worker processes; by default one per core, four at most."""
    cluster: str | None = None
    """`tcp://HOST:PORT` of a Dask scheduler, or `local:N`; by default worker processes."""
    memory_limit: int | None = None
    """Bytes that all nodes together may be expected to use; by default four fifths of what is free."""
    step_timeout: float | None = None
    """Seconds that one step of a chain may take, after which it is ended and fails; by default for ever."""
    clean_cache: bool = False
    allow_pickle: bool = False
    command: str | None = None
    """Typed command, where that stands in place of a workflow file."""
    earlier: EarlierRuns | None = None
    """Records of earlier runs in the store, where several runs share them."""
    sharing: Unshared | None = None
    """The shared store, where several runs ask it together."""
    overwrite: bool = False
    """Replace outputs that hold another pipeline, and files of theirs that were changed since."""

    def __post_init__(self) -> None:
        """Take text for paths too."""
        hold_paths(self, "cache_dir", "output")


DEFAULTS: Final = Options()
"""A workflow as its file says."""


class EarlierRuns:
    """The records of a store's runs, newest first; each is read when first looked at, and once."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._unread = iter(records)
        self._read: list[RunRecord] = []
        self._lock = Lock()

    def __iter__(self) -> Iterator[RunRecord]:
        for number in count():
            with self._lock:
                if number == len(self._read):
                    record = next(self._unread, None)
                    if record is None:
                        return
                    self._read.append(record)
            yield self._read[number]


class History:
    """Run records of one workflow, newest first; and the latest of others, which explain what it never ran."""

    def __init__(self, earlier: EarlierRuns, workflow: str) -> None:
        self._earlier = earlier
        self._workflow = workflow

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self._records[0])

    def groups(self) -> tuple[list[RunRecord], list[RunRecord]]:
        """Return the records of the workflow, and those of others; each newest first."""
        return self._records

    def latest(self, number: int) -> Iterator[RunRecord]:
        """Yield the latest records of any workflow, newest first."""
        return islice(self._earlier, number)

    @cached_property
    def _records(self) -> tuple[list[RunRecord], list[RunRecord]]:
        mine: list[RunRecord] = []
        others: list[RunRecord] = []
        for record in self._earlier:
            if record.workflow == self._workflow:
                mine.append(record)
            elif len(others) < _HISTORY:
                others.append(record)
            if len(mine) == _HISTORY:
                break
        return mine, others


@dataclass(frozen=True)
class Prepared:
    """A workflow with its source and store, ready to be planned: `olivelike.engine.preparation.prepare` makes it."""

    workflow: LoadedWorkflow
    source: PipelineSource
    adapters: Adapters
    store: Store
    outputs: tuple[Output, ...]
    nodes: tuple[Node, ...]
    history: History
    options: Options = field(default_factory=Options)
    shared: Backend | None = None
    """The store that several machines share."""

    @property
    def origins(self) -> tuple[tuple[str, Origin], ...]:
        """Origins of all that outputs are made of, each with what it is in them."""
        loras, embeddings = self.adapters.loras, self.adapters.embeddings
        return all_origins(self.source.origin, (one.origin for one in loras), (one.origin for one in embeddings))
