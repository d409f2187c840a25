"""Nodes of the DAG: steps placed in the chains of a workflow's components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from olivelike.model.client_layouts import DEFAULT, LAYOUTS, TOKENIZER_FILE
from olivelike.model.components import TOKENIZERS
from olivelike.pass_api import ADDITIONS

if TYPE_CHECKING:
    from olivelike.pass_api import Pass
    from olivelike.workflow import Output, Step

Kind = Literal["load", "pass", "materialize", "assets", "tokenizer"]

ADD_EMBEDDINGS = "add_embeddings"
"""The pass that textual inversions bring with them."""

LAYOUT, ONNX_TOKENIZER = "layout", "onnx_tokenizer"
"""The passes that an output's layout brings with it."""

ORIGINAL = "original."
"""Stands before the name of a facet that a node reads as it was loaded, where passes have changed it since."""

PIPELINE = "pipeline"
"""Stands for a component in nodes that concern the whole pipeline."""


@dataclass(frozen=True)
class Node:
    """One step in the DAG.

    `load` resolves a component's checkpoint to an architecture and parameter names; a `pass` runs a step;
    `materialize` streams graph and weights into an output; `assets` brings tokenizers, scheduler and feature
    extractor up to date; `tokenizer` takes the vocabulary of one of these tokenizers for an architecture.
    """

    id: str
    """`unet.convert`; `unet.materialize@ship`, with the output's name, if there are several. It is in no key."""
    component: str
    kind: Kind
    parent: str | None
    """The node whose model this one takes; `None` for `load`."""
    step: Step | None = None
    output: Output | None = None

    @property
    def name(self) -> str:
        """The step's own name: that of its pass, or `load` or `materialize`."""
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
        if self.component in TOKENIZERS:
            return {"model_file": TOKENIZER_FILE, "data_file": layout.data_file}
        return {} if layout.name == DEFAULT else layout.file_names(self.output.path.name)


def changes_network(instance: Pass) -> bool:
    """Tell whether a pass makes other weights, or another architecture, than the checkpoint with its additions has."""
    return bool({"architecture", "weights"} & set(instance.writes)) and not set(ADDITIONS) & set(
        instance.reads
    )
