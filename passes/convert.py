"""`convert`: from an architecture to a weightless ONNX graph at opset 23."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class Convert(Pass):
    """Export a component's network to ONNX, from its architecture alone: no weight is read."""

    reads: ClassVar = ("architecture",)
    writes: ClassVar = ("graph",)
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=900 << 20)

    fresh: bool = False
    """Trace the network although a shelf has its graph, which is the same byte for byte."""

    any_size: bool = False
    """Let a UNet take sides of any number of latents, for pictures in multiples of 8 pixels; it is traced then."""

    def run(self, model: Model, context: Context) -> Model:
        """Export under fake parameters, name inputs and outputs as clients expect, simplify."""
        from olivelike.graphs.export import export_component

        architecture = model.require("architecture")
        return model.replace(graph=export_component(architecture, context.logger, any_size=self.any_size))
