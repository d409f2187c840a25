"""Record of weights that steps quantised: how many in which type, which stay in float, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from olivelike._text import count
from olivelike.measure.report.content import Fold, Section, Table
from olivelike.measure.report.step_facts import Figures, Kept, Verified, figures, quantised
from olivelike.model.records.run_record import NodeRecord, RunRecord


def quantised_weights(run: RunRecord, later: Verified) -> Section:
    """Return a row for each type in which a step left weights, and the names of those that stay in float.

    `later` is what `olivelike verify` found of the run's output.
    """
    found = [(node, kept.kept_weights) for node in run.nodes if (kept := quantised(node)) is not None]
    rows = [row for node, kept in found for row in _rows(node, kept, _error(node, run, later))]
    header = ("Step", "Weights in", "Blocks of", "Layers", "Weights", "Share", "Error")
    caption = "Weights of layers that steps quantised; the error is that of the whole network"
    in_float = (_in_float(node, one) for node, kept in found for one in kept if one.names)
    table = Table(header, rows, (3, 4, 5, 6), caption)
    return Section("quantisation", "Quantisation", (table, *in_float))


def _rows(node: NodeRecord, kept: tuple[Kept, ...], error: Figures | None) -> Iterator[tuple[str, ...]]:
    total = sum(one.weights for one in kept) or 1
    for place, one in enumerate(kept):
        yield (
            node.id,
            one.form,
            ", ".join(map(str, one.blocks)),
            f"{one.layers:,}",
            f"{one.weights:,}",
            f"{100 * one.weights / total:.1f} %",
            "" if place else "not compared" if error is None else f"{error.error:.1e}",
        )


def _in_float(node: NodeRecord, kept: Kept) -> Fold:
    title = f"{count(kept.layers, 'layer')} of {node.id} in {kept.form}, the largest first"
    return Fold(title, (Table(("Weight",), [(name,) for name in kept.names], caption=title),))


def _error(node: NodeRecord, run: RunRecord, later: Verified) -> Figures | None:
    """Return what the step `verify` behind a step found, or else `olivelike verify` of the only output."""
    behind = [figures(other.facts.get("verification")) for other in run.nodes if other.parent == node.id]
    one = next((found for found in behind if found is not None), None)
    if one is None and len(run.outputs) <= 1:
        one = figures(later.components.get(node.component))
    return one
