"""Nodes of the DAG: steps placed in the chains of a workflow's components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.families import TOKENIZERS
from olivelike.model.client_layouts import DEFAULT, LAYOUTS, TOKENIZER_FILE
from olivelike.model.components import PIPELINE, PIPELINE_FILE
from olivelike.pass_api import ADAPTERS, Pass

if TYPE_CHECKING:
    from olivelike.workflow import Calibration, Output, Step


CONVERT = "convert"
"""The pass whose graphs shelves hold."""

ADD_EMBEDDINGS = "add_embeddings"
"""The pass that textual inversions bring with them."""

CALIBRATE, CALIBRATION = "calibrate", "calibration"
"""The kind of the node that draws, and what passes read of it."""
DRAWING = "drawing"
"""Word in `reads` of passes that draw by themselves what calibration draws."""

LAYOUT, ONNX_TOKENIZER = "layout", "onnx_tokenizer"
"""The passes that an output's layout brings with it."""


@dataclass(frozen=True)
class Node:
    """One step in the DAG."""

    id: str
    """`unet.convert`; `unet.materialize@ship`, with the output's name, if there are several. It is in no key."""
    component: str
    kind: str
    """One of `olivelike.engine.kinds.KINDS`."""
    parent: str | None
    """The node whose model this one takes; `None` for `load`."""
    step: Step | None = None
    output: Output | None = None
    joins: tuple[str, ...] = ()
    """Nodes whose results it takes, beside what its parent made: the ends of chains, or what calibration saw."""
    calibration: Calibration | None = None
    """Prompts and settings of a calibration; among steps, those that draw it by themselves have one."""

    @property
    def components(self) -> dict[str, str]:
        """The components that it takes together, each with the end of its chain."""
        return {node_id.partition(".")[0]: node_id for node_id in self.joins}

    @property
    def name(self) -> str:
        """The step's own name: that of its pass, or the kind."""
        return self.step.pass_name if self.step is not None else self.kind

    @property
    def label(self) -> str:
        """The id without the component: `convert`, `fuse.2`, `materialize@ship`."""
        return self.id.removeprefix(f"{self.component}.")

    @property
    def file_names(self) -> dict[str, str]:
        """The `model_file` and `data_file` that a `materialize` node writes; empty for those of the default layout."""
        if self.output is None:
            return {}
        layout = LAYOUTS[self.output.layout]
        if self.component == PIPELINE:
            return {"model_file": PIPELINE_FILE, "data_file": layout.data_file}
        if self.component in TOKENIZERS:
            return {"model_file": TOKENIZER_FILE, "data_file": layout.data_file}
        return {} if layout.name == DEFAULT else layout.file_names(self.output.path.name)

    def folder(self, target: str) -> str:
        """Return where in its output a node writes to, for a target of this name."""
        if self.output is None or self.component == PIPELINE:
            return "."
        return LAYOUTS[self.output.layout].network_folder(self.component, target)

    @property
    def most_data_bytes(self) -> int | None:
        """Size of the data files that a `materialize` node writes; `None` if there is one of any size."""
        return None if self.output is None else LAYOUTS[self.output.layout].most_data_bytes


def changes_network(instance: Pass) -> bool:
    """Tell whether a pass makes other weights, or another architecture, than the checkpoint with its adapters has."""
    return bool({"architecture", "weights"} & set(instance.writes)) and not set(ADAPTERS) & set(instance.reads)
