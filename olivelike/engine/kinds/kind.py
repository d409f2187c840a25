"""The base of every kind of node: the part that plans it, and the task that a worker does for it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from olivelike._extras import load
from olivelike._untrusted import Json, JsonView
from olivelike.engine.keys import Key, work_key
from olivelike.errors import PassError
from olivelike.model.components import DERIVED_FILES

if TYPE_CHECKING:
    import logging
    from pathlib import Path

    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node
    from olivelike.graphs.shelf import Answer
    from olivelike.model.records.output import OutputRecord
    from olivelike.sources import PipelineSource
    from olivelike.store import Store


@dataclass(frozen=True)
class Upstream:
    """Knowledge of a component before a node, as digests by name."""

    made: Mapping[str, str] = field(default_factory=dict)
    """Last results of the nodes before it: facets, the `adaptation` of a checkpoint, the table of `assets`."""
    original: Mapping[str, str] | None = None
    """Digests before any pass changed the network; `None` while none has."""
    awaited: Mapping[str, str] = field(default_factory=dict)
    """Node that has yet to run, by the name of what it makes; what `made` has of that name is older."""


@dataclass(frozen=True)
class Estimate:
    """Bytes that a node is expected to write and to take if it runs."""

    write_bytes: int
    memory_bytes: int
    """Peak resident memory of its process."""


@dataclass(frozen=True)
class Workplace:
    """Component, node, store and log of a task."""

    node: str
    component: str
    store: str
    """The store's folder."""
    log: str
    """The file that takes what is printed and logged."""


@dataclass(frozen=True)
class Needs:
    """Files, objects and plugins that a task uses, which go along when another machine does it."""

    objects: frozenset[str] = frozenset()
    """Digests of objects of the store."""
    files: tuple[str, ...] = ()
    """Paths of files of sources and adapters."""
    plugins: tuple[str, ...] = ()
    """Paths of plugin files and folders."""
    folder: str | None = None
    """The folder that it writes."""
    file_names: tuple[str, str] = ("", "")
    """The model file and the first data file that it writes there."""

    def writes(self, name: str) -> bool:
        """Tell whether a file that a task reports is one that it may write there."""
        model, data = self.file_names
        stem, _, suffix = data.rpartition(".")
        return (
            name in {model, data, "config.json", *DERIVED_FILES}
            or re.fullmatch(rf"{re.escape(stem)}\.[1-9][0-9]{{0,5}}\.{re.escape(suffix)}", name) is not None
        )


@dataclass(frozen=True)
class Task(ABC):
    """One node, ready to run in another process: JSON values alone, never pickled objects."""

    place: Workplace

    def to_json(self) -> Json:
        """Return the task as JSON values, with the name of its class."""
        return {"task": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_json(message: JsonView) -> Task:
        """Read what `to_json` gave."""
        fields = dict(message)
        name, place = fields.pop("task"), Workplace(**fields.pop("place"))
        found = next((cls for cls in _tasks(Task) if cls.__name__ == name), None)
        return (found or load("TASKS", name))(place, **fields)

    def needs(self, store: Store) -> Needs:  # noqa: ARG002  (overridden)
        """Return what it uses of this machine; `store` is the one that it was planned with."""
        return Needs()

    def check_unchanged(self) -> None:  # noqa: B027  (a task without files of a source has nothing to refuse)
        """Refuse a result whose source was written to since it was planned. Raises `SourceError` naming the file."""

    def elsewhere(self) -> Task:
        """Return the task without what would only spare this machine work."""
        return self

    @abstractmethod
    def run(self, bench: Workbench) -> Done:
        """Make the node's result.

        What this method imports from olivelike is the code that the node's key holds.

        Raises:
            OlivelikeError: what went wrong, with place and remedy.
        """


def _tasks(root: Any) -> Iterator[Callable[..., Task]]:
    for cls in root.__subclasses__():
        yield cls
        yield from _tasks(cls)


@dataclass(frozen=True)
class Done:
    """A task's result."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    """Digest of each thing that the node made, by name."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Size of every object in the store that the result needs, by digest."""
    facts: JsonView = field(default_factory=dict)
    seconds: float = 0.0
    memory_before_bytes: int = 0
    """Resident memory of the worker as it began: imports and what allocators keep of earlier tasks."""


class NotedProgress(Protocol):
    """Progress of a pass, which may come with words."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Tell that `done` of `total` units are finished, and what is at work: `picture 1 of 2, step 3 of 8`."""


@dataclass(frozen=True)
class Workbench:
    """Store, logger and progress that a task is lent where it runs."""

    store: Store
    logger: logging.Logger
    progress: NotedProgress

    def keep(self, made: Mapping[str, bytes], facts: JsonView | None = None) -> Done:
        """Store what a task has made, by name."""
        outputs = {name: self.store.put_bytes(data) for name, data in made.items()}
        return Done(outputs, {outputs[name]: len(data) for name, data in made.items()}, facts or {})


def check_graph(name: str, data: bytes) -> None:
    """Refuse a graph that is not valid ONNX. Raises `PassError` naming the pass."""
    import onnx

    try:
        onnx.checker.check_model(data)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise PassError(f"pass {name} returned a graph that is not valid ONNX: {error}") from error


class Kind(ABC):
    """How nodes of one kind are planned; these defaults fit one that makes small files of the source."""

    task_type: ClassVar[type[Task]]
    """The task that a worker does for such a node; the code behind its method `run` is in the key."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version changes the result although no import of its code names them."""
    always_reads: ClassVar[tuple[str, ...]] = ()

    def reads(self, node: Node) -> tuple[str, ...]:  # noqa: ARG002  (overridden)
        """Return what decides the result: facets, and what else nodes before it made or a workflow adds."""
        return self.always_reads

    def files(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[Path, ...]:  # noqa: ARG002
        """Return the files that must be hashed before the node's key is known."""
        return ()

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:  # noqa: ARG002
        """Return the digest of all that the node reads, by name; waits for files that are being hashed."""
        return {name: upstream.made[name] for name in self.reads(node) if name in upstream.made}

    def behind(self, node: Node, inputs: Inputs) -> dict[str, dict[str, Json]]:  # noqa: ARG002
        """Return what lists are behind digests of facets: by the facet, and by a name that people know each item by."""
        return {}

    def options(self, node: Node) -> Json:
        """Return what else its work is told."""
        return {"component": node.component}

    def work(self, node: Node, source: PipelineSource) -> Callable[..., Any]:  # noqa: ARG002
        """Return the function that makes the result."""
        return self.task_type.run

    def key(self, node: Node, facets: dict[str, str], inputs: Inputs) -> Key | str:
        """Return the node's key, or why it has none."""
        work = self.work(node, inputs.source)
        return work_key(node.kind, work, self.libraries, self.options(node), facets)

    def surely_runs(self, node: Node, key: Key, record: OutputRecord | None) -> bool:  # noqa: ARG002
        """Tell whether the node runs whatever the digests of its files are.

        Args:
            node: One with an output.
            key: Its key, with stand-ins for those digests.
            record: That of the output.
        """
        return False

    def shelved(self, node: Node, upstream: Upstream, inputs: Inputs) -> Answer | None:  # noqa: ARG002
        """Return what the node would make, if a shelf knows it."""
        return None

    def makes(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[frozenset[str], frozenset[str]]:  # noqa: ARG002
        """Return the names of what a record of the node has for sure, and of all that it may have."""
        return frozenset(), frozenset()

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:  # noqa: ARG002
        """Return what the node is expected to cost.

        Args:
            node: The node.
            chain: The nodes before it, the nearest first.
            source: Sizes of the networks.
        """
        return Estimate(100_000, 800 << 20)

    @abstractmethod
    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""


@dataclass(frozen=True)
class Assignment:
    """A node that is to run, and what its task is made from."""

    node: Node
    inputs: Inputs
    upstream: Upstream
    facets: dict[str, str]
    key: Key | None
    folder: Path | None
    """Folder that a node with an output writes to."""
    reuse: bool
    """Whether the results of earlier runs may be used."""
