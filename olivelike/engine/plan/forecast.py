"""How long nodes take, learned from earlier runs on this machine, and how long a plan takes with several workers."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from olivelike.engine.plan.planner import estimate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from olivelike._untrusted import Json, JsonView
    from olivelike.engine.plan.node import Node
    from olivelike.model.records.run_record import RunRecord
    from olivelike.sources import PipelineSource

_LARGEST_RATIO = 2.0
"""How much larger or smaller a network may be whose time stands for another's."""
_MEDIAN_OF = 5
"""Number of the latest times that count."""


@dataclass(frozen=True)
class _Sample:
    """One executed node of an earlier run."""

    component: str
    elements: int
    options: JsonView
    seconds: float


@dataclass(frozen=True)
class TimeLeft:
    """Time that is still to come of a run."""

    seconds: float | None
    """Estimated wall time; `None` if it is known of no node. Nodes of unknown time count nothing."""
    unknown: int
    """Number of nodes whose time nothing tells."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        return {"seconds_left": None if self.seconds is None else round(self.seconds, 1), "unknown_nodes": self.unknown}


class Forecast:
    """Expected times of one workflow's nodes."""

    def __init__(
        self,
        nodes: Sequence[Node],
        source: PipelineSource,
        records: Iterable[RunRecord],
        workers: int,
        memory_limit: int,
    ) -> None:
        """Learn from earlier runs.

        Args:
            nodes: The DAG, parents first.
            source: Sizes of the networks.
            records: Run records of this machine, newest first, of any workflow.
            workers: How many nodes run at once.
            memory_limit: Bytes that all of them together may be expected to use.
        """
        self._elements = {name: checkpoint.elements for name, checkpoint in source.checkpoints.items()}
        self._workers, self._memory_limit = workers, memory_limit
        # In the order in which the executor takes them.
        self._nodes = sorted(nodes, key=lambda node: -self._elements.get(node.component, 0))
        self._memory = {node.id: estimate(node, nodes, source).memory_bytes for node in nodes}
        samples: dict[str, list[_Sample]] = {node.name: [] for node in nodes}
        for name, sample in _samples(records):
            if name in samples:
                samples[name].append(sample)
        self._seconds = {node.id: self._expect(node, samples[node.name]) for node in nodes}

    def seconds(self, node_id: str) -> float | None:
        """Return how long a node is expected to run, in tenths; `None` if nothing like it has run here."""
        seconds = self._seconds[node_id]
        return None if seconds is None else round(seconds, 1)

    def left(self, waiting: Collection[str], running: Mapping[str, float] | None = None) -> TimeLeft:
        """Return how long it takes until all nodes have run, by going through it as the executor would.

        Args:
            waiting: Ids of the nodes that have not begun.
            running: Seconds so far of those that run, by id.
        """
        begun = running or {}
        open_ids = {*waiting, *begun}
        known = [node_id for node_id in open_ids if self._seconds[node_id] is not None]
        if open_ids and not known:
            return TimeLeft(None, len(open_ids))
        unknown = len(open_ids) - len(known)
        now, ends = 0.0, [(max(0.0, self._expected(id_) - so_far), id_) for id_, so_far in begun.items()]
        heapq.heapify(ends)
        queue = [node for node in self._nodes if node.id in open_ids and node.id not in begun]
        while queue or ends:
            for node in list(queue):
                used = sum(self._memory[id_] for _, id_ in ends)
                if not open_ids.isdisjoint({node.parent, *node.joins}) or len(ends) >= self._workers:
                    continue
                if ends and used + self._memory[node.id] > self._memory_limit:
                    continue
                queue.remove(node)
                heapq.heappush(ends, (now + self._expected(node.id), node.id))
            if not ends:
                break  # A parent is missing: such nodes never run.
            now, ended = heapq.heappop(ends)
            open_ids.discard(ended)
        return TimeLeft(now, unknown)

    def _expected(self, node_id: str) -> float:
        return self._seconds[node_id] or 0.0

    def _expect(self, node: Node, samples: Sequence[_Sample]) -> float | None:
        """Return the median of the latest times of what is most like a node.

        The same component comes before another, then the nearest size, then the same options.
        """
        elements = self._elements.get(node.component, 0)
        options = node.step.instance.model_dump(mode="json") if node.step is not None else {}
        alike: dict[tuple[bool, float, bool], list[float]] = {}
        for sample in samples:
            ratio = _ratio(elements, sample.elements)
            if ratio is None:
                continue
            other_options = node.step is not None and sample.options != options
            rank = (sample.component != node.component, round(abs(math.log2(ratio)), 2), other_options)
            alike.setdefault(rank, []).append(sample.seconds * ratio)
        return median(alike[min(alike)][:_MEDIAN_OF]) if alike else None


def _ratio(elements: int, others: int) -> float | None:
    """Return how many times larger a network is than another; `None` if they can't be compared."""
    if elements == others:
        return 1.0
    if not elements or not others:
        return None
    ratio = elements / others
    return ratio if 1 / _LARGEST_RATIO <= ratio <= _LARGEST_RATIO else None


def _samples(records: Iterable[RunRecord]) -> Iterator[tuple[str, _Sample]]:
    """Yield the executed nodes of run records by the names of their steps."""
    for record in records:
        if not record.elements:
            continue  # Records of older versions do not say how large the networks were.
        for node in record.nodes:
            if node.status == "executed":
                options = (node.inputs or {}).get("options")
                elements = record.elements.get(node.component, 0)
                known = options if isinstance(options, dict) else {}
                yield node.name, _Sample(node.component, elements, known, node.seconds)
