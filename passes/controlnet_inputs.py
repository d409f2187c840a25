"""`controlnet_inputs`: a UNet that takes what ControlNets give."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class ControlnetInputs(Pass):
    """Write `controlnet.onnx` beside a UNet, over the same weights: the UNet with the inputs that ControlNets feed.

    It comes behind the other steps of `unet` by itself where a workflow has ControlNets.
    """

    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)
    components: ClassVar = ("unet",)
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    def run(self, model: Model, context: Context) -> Model:
        """Mark the graph; count inputs and operators of the other one."""
        from olivelike.graphs.controlled import mark_controlled
        from olivelike.model import Graph

        graph = model.require("graph").to_ir()
        context.report(**mark_controlled(graph))
        return model.replace(graph=Graph.from_ir(graph))
