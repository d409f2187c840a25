"""`layout`: the names, types and ranks by which one client knows a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveInt  # noqa: TC002  (pydantic reads it)

from olivelike.model.client_layouts import LayoutName
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class Layout(Pass):
    """Fit inputs and outputs to a client; the workflow's `layout:` puts it at the end of each chain."""

    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    profile: LayoutName
    """The client: `diffusers`, `optimum`, `csharp`, `onnxstack`, `a1111-dml` or `web`. `single`, `single-ids`,
    `triton` and `ortpackage` change names alone."""

    size: tuple[PositiveInt, PositiveInt] | None = None
    """Width and height in pixels of the only pictures that the networks make; by default any size."""

    def run(self, model: Model, context: Context) -> Model:
        """Cast, reshape and rename at the border of the graph, and count."""
        from olivelike.graphs.client_layout import lay_out
        from olivelike.model import Graph
        from olivelike.model.client_layouts import LAYOUTS

        graph = model.require("graph").to_ir()
        context.report(**lay_out(graph, model.component, LAYOUTS[self.profile], self.size))
        return model.replace(graph=Graph.from_ir(graph))
