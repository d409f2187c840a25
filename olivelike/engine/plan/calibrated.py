"""The place in a DAG where pictures are drawn, for passes that read what is seen: behind all chains in float."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from olivelike.engine.plan.node import CALIBRATE, CALIBRATION, CONVERT, DRAWING, Node
from olivelike.errors import WorkflowError
from olivelike.families import TEXT_ENCODERS, TEXT_TO_PICTURE, missing_networks
from olivelike.model.components import PIPELINE, SAFETY_CHECKER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.workflow import LoadedWorkflow

_FLOAT_ENDS = (CONVERT, "fuse")
"""Passes behind which a network draws in float, where its own chain has none that reads the calibration."""
_DRAWING = (*TEXT_TO_PICTURE, SAFETY_CHECKER)
"""Networks that pictures of the calibration take, where the workflow has them."""


def is_calibrated(node: Node) -> bool:
    """Tell whether a node reads what calibration saw, or draws that itself."""
    return node.step is not None and not {CALIBRATION, DRAWING}.isdisjoint(node.step.instance.reads)


def draws(node: Node) -> bool:
    """Tell whether a step draws by itself what calibration draws."""
    return node.step is not None and DRAWING in node.step.instance.reads


def with_calibration(nodes: Sequence[Node], workflow: LoadedWorkflow) -> tuple[Node, ...]:
    """Return the nodes, parents first, with one that draws if any of them reads what it sees.

    Raises `WorkflowError` if a network that drawing takes is not there.
    """
    readers = [node for node in nodes if is_calibrated(node)]
    if not readers:
        return tuple(nodes)
    components = tuple(dict.fromkeys(node.component for node in readers))
    _check(readers, nodes)
    settings = workflow.workflow.calibration
    assert settings is not None
    ends = [end for name in _DRAWING if (end := _float_end(name, nodes)) is not None]
    drawing = Node(
        f"{PIPELINE}.{CALIBRATE}", PIPELINE, CALIBRATE, f"{PIPELINE}.assets",
        joins=tuple(ends), calibration=replace(settings, components=components),
    )  # fmt: skip
    behind = {node.id: replace(node, joins=(drawing.id,)) for node in readers}
    for node in readers:
        if draws(node):  # It needs what calibration needs.
            behind[node.id] = replace(node, joins=(drawing.id, *ends), calibration=settings)
    return _parents_first([*(behind.get(node.id, node) for node in nodes), drawing])


def _check(readers: Sequence[Node], nodes: Sequence[Node]) -> None:
    there = {node.component for node in nodes}
    step = readers[0].step
    assert step is not None
    missing = missing_networks(there)
    if not there & {*TEXT_ENCODERS}:
        missing.insert(0, "a text encoder")
    if missing:
        raise WorkflowError(
            f"{step.position}: `{step.pass_name}` rounds to what calibration sees as the pipeline draws, and there is "
            f"no {missing[0]} to draw with; add it to `components`, or to `--only`"
        )


def _float_end(component: str, nodes: Sequence[Node]) -> str | None:
    """Return the last node of a chain that still is in float, as far as drawing is concerned."""
    chain = [node for node in nodes if node.component == component and node.kind in {"load", "pass"}]
    reader = next((node for node in chain if is_calibrated(node)), None)
    if reader is not None:
        return reader.parent
    ends = [node.id for node in chain if node.name in _FLOAT_ENDS]
    return ends[-1] if ends else chain[-1].id if chain else None


def _parents_first(nodes: Sequence[Node]) -> tuple[Node, ...]:
    by_id = {node.id: node for node in nodes}
    order = TopologicalSorter({node.id: [*([node.parent] if node.parent else []), *node.joins] for node in nodes})
    return tuple(by_id[name] for name in order.static_order())
