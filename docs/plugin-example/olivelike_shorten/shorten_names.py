"""The pass `shorten_names`: a smaller graph file through shorter names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.pass_api import Context, Pass
from olivelike_shorten.numbering import short_names

if TYPE_CHECKING:
    from olivelike.model import Model


class ShortenNames(Pass):
    """Give the values inside a graph short names; inputs, outputs and parameters keep theirs."""

    reads = ("graph",)
    writes = ("graph",)

    prefix: str = "v"
    """What each short name begins with."""

    def run(self, model: Model, context: Context) -> Model:
        """Rename in the order of the nodes, so that equal graphs stay equal."""
        from olivelike.model import Graph

        onnx_model = model.graph.to_ir()
        graph = onnx_model.graph
        inside = [value for node in graph for value in node.outputs if not value.is_graph_output()]
        kept = {value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
        for value, name in zip(inside, short_names(self.prefix, kept), strict=False):
            value.name = name
        context.facts["renamed"] = len(inside)
        return model.replace(graph=Graph.from_ir(onnx_model))
