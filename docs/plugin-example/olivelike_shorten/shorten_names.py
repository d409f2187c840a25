"""The pass `shorten_names`: a smaller graph file through shorter names."""

from __future__ import annotations

from typing import ClassVar

from olivelike.pass_api import Context, Graph, Model, Pass
from olivelike_shorten.numbering import short_names


class ShortenNames(Pass):
    """Give the values inside a graph short names; inputs, outputs and parameters keep theirs."""

    pass_api: ClassVar = 1
    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)

    prefix: str = "v"
    """What each short name begins with."""

    def run(self, model: Model, context: Context) -> Model:
        """Rename in the order of the nodes, so that equal graphs stay equal."""
        onnx_model = model.require("graph").to_ir()
        graph = onnx_model.graph
        inside = [value for node in graph for value in node.outputs if not value.is_graph_output()]
        kept = {value.name or "" for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
        for value, name in zip(inside, short_names(self.prefix, kept), strict=False):
            value.name = name
        context.report(renamed=len(inside))
        return model.replace(graph=Graph.from_ir(onnx_model))
