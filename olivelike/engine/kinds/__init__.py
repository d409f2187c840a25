"""Kinds of nodes: a file for each says what it reads, how it is planned, and what a worker does for it.

A new kind is a file here and a row in `KINDS`; its name is what `Node.kind` says. Extras give others.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from olivelike._extras import needed
from olivelike.engine.kinds.asset_nodes import AssetsNode, TokenizerNode
from olivelike.engine.kinds.calibrate import CalibrateNode
from olivelike.engine.kinds.load import LoadNode
from olivelike.engine.kinds.materialize_node import MaterializeNode
from olivelike.engine.kinds.step import StepNode
from olivelike.engine.plan.node import CALIBRATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.engine.kinds.kind import Kind
    from olivelike.engine.plan.node import Node

KINDS: Final[Mapping[str, Kind]] = {
    "load": LoadNode(),
    "pass": StepNode(),
    "materialize": MaterializeNode(),
    "assets": AssetsNode(),
    "tokenizer": TokenizerNode(),
    CALIBRATE: CalibrateNode(),
}


def kind_of(node: Node) -> Kind:
    """Return what a node is. Raises `MissingError` where that is an extra's that is not here."""
    return KINDS.get(node.kind) or _given(node.kind, node.id)


@cache
def _given(kind: str, node: str) -> Kind:
    made: Kind = needed("KINDS", kind, f"{node}, as its layout asks,")()
    return made
