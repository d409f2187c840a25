"""Facts that steps leave in a run's record, and commands beside it, as values.

Any pass may leave any facts, so what is not as expected counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from olivelike.measure.result_rows import EngineRow, FidelityReport, FolderProfile
from olivelike.model.records.reading import part_of_json
from olivelike.model.records.run_record import NodeRecord


@dataclass(frozen=True)
class Fusion:
    """Operators of a graph before and after fusion; the fields are the facts that `fuse` leaves."""

    operators_before: Mapping[str, int]
    operators_after: Mapping[str, int]
    nodes_before: int
    nodes_after: int
    fused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By rule: what it wrote, and how often."""
    left: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By rule: why it left something as it was, and how often."""


@dataclass(frozen=True)
class Kept:
    """Weights of layers that a step left in one type; the fields are those of `KeptWeights`."""

    form: str
    layers: int
    weights: int
    blocks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    """Names of the weights in float."""


@dataclass(frozen=True)
class Quantised:
    """Facts that a step that quantises left."""

    kept_weights: tuple[Kept, ...]


@dataclass(frozen=True)
class Figures:
    """How far a network is from the original."""

    relative_error: float | None
    """`None` if it is not finite."""
    limit: float | None = None
    passed: bool | None = None

    @property
    def error(self) -> float:
        """Relative error; infinity for one that is not finite."""
        return math.inf if self.relative_error is None else self.relative_error


@dataclass(frozen=True)
class Verified:
    """Findings of `olivelike verify` on an output."""

    components: Mapping[str, object] = field(default_factory=dict)
    folder: str = ""
    pictures: tuple[object, ...] = ()
    """With the names of their files."""


@dataclass(frozen=True)
class Bench:
    """Measurements of `olivelike bench`."""

    rows: tuple[EngineRow, ...] = ()

    @property
    def fastest(self) -> EngineRow | None:
        """The fastest engine that runs the optimised folder, at its smallest batch size."""
        rows = [
            row for row in self.rows if row.status == "ok" and row.median_latency and row.provider not in _ORIGINALS
        ]
        return min(rows, key=lambda row: (row.batch_size or 1, row.median_latency), default=None)


_ORIGINALS = frozenset({"default", "compile", "xformers"})
"""Values of the column `provider` for engines that run the original in torch."""


@dataclass(frozen=True)
class Findings:
    """Results of commands that lie beside a report."""

    folder: Path
    """Folder of the pictures."""
    profile: FolderProfile | None
    verified: Verified
    bench: Bench
    fidelity: FidelityReport | None


def read_findings(folder: Path, profile: object, verified: object, bench: object, fidelity: object) -> Findings:
    """Return the JSON that commands left as values; what is not as expected counts as absent."""
    return Findings(
        folder,
        part_of_json(FolderProfile, profile),
        part_of_json(Verified, verified) or Verified(),
        part_of_json(Bench, bench) or Bench(),
        part_of_json(FidelityReport, fidelity),
    )


def fusion(node: NodeRecord) -> Fusion | None:
    """Return the operator counts that a node left, if it did."""
    return part_of_json(Fusion, node.facts)


def quantised(node: NodeRecord) -> Quantised | None:
    """Return how a step left weights, if it quantised them."""
    return part_of_json(Quantised, node.facts)


def figures(value: object) -> Figures | None:
    """Return how far a network is from the original, if that is what the value says."""
    return part_of_json(Figures, value)
