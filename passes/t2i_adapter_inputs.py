"""`t2i_adapter_inputs`: a UNet that takes what T2I-Adapters give."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class T2iAdapterInputs(Pass):
    """Write `t2i_adapter.onnx` beside a UNet, over the same weights: the UNet with the inputs that T2I-Adapters feed.

    It comes behind the other steps of `unet` by itself where a workflow has T2I-Adapters. With `controlnet_inputs` in
    the chain, `controlnet_t2i_adapter.onnx` takes both.
    """

    reads: ClassVar = ("architecture", "graph", "target")
    writes: ClassVar = ("graph",)
    components: ClassVar = ("unet",)
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    def run(self, model: Model, context: Context) -> Model:
        """Mark the graph; count inputs and operators of the other one."""
        from olivelike.graphs.adapted import mark_adapted
        from olivelike.model import Graph
        from olivelike.model.adapter_features import taken_features

        graph = model.require("graph").to_ir()
        features = taken_features(model.require("architecture").config)
        context.report(**mark_adapted(graph, features, on_cpu=context.require_target().name == "cpu"))
        return model.replace(graph=Graph.from_ir(graph))
