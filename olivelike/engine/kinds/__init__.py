"""What nodes there are: a file for each kind says what it reads, how it is planned, and what a worker does for it.

A new kind is a file here and a row in `KINDS`; its name is what `Node.kind` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.engine.kinds.assets import AssetsNode, TokenizerNode
from olivelike.engine.kinds.calibrate import CalibrateNode
from olivelike.engine.kinds.load import LoadNode
from olivelike.engine.kinds.materialize import MaterializeNode
from olivelike.engine.kinds.one_file import OneFileNode
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
    "one_file": OneFileNode(),
    CALIBRATE: CalibrateNode(),
}


def kind_of(node: Node) -> Kind:
    """Return what a node is."""
    return KINDS[node.kind]
