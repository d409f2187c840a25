"""`ip_adapter`: a UNet that attends to a picture beside the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class IpAdapter(Pass):
    """Give a UNet the workflow's `ip_adapter:`, and write `ip_adapter.onnx` beside it, which takes a picture's tokens.

    It comes behind `convert` by itself where a workflow has an IP-Adapter.
    """

    reads: ClassVar = ("architecture", "weights", "graph", "ip_adapter")
    writes: ClassVar = ("weights", "graph")
    components: ClassVar = ("unet",)
    once: ClassVar = True
    comes_before: ClassVar = ("fuse", "float16", "bfloat16", "deepcache", "controlnet_inputs")
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    def run(self, model: Model, context: Context) -> Model:
        """Add the adapter's keys and values to the weights, and to each cross-attention a second branch."""
        from olivelike.graphs.image_prompt import KINDS, add_image_prompt, cross_attentions, image_parameter
        from olivelike.model import Graph, Tensor
        from olivelike.sources.adapters.ip_adapter_file import read_ip_adapter
        from olivelike.sources.files.pickled import read_pickle_table

        path = context.require_ip_adapter().path
        adapter, digest = read_ip_adapter(path, read_pickle_table), context.tensors.file(path)
        weights, graph = model.require("weights"), model.require("graph").to_ir()
        added: dict[str, Tensor] = {}
        for block, layer in zip(cross_attentions(weights), adapter.layers_for(weights), strict=True):
            for kind in KINDS:
                raw = layer[kind]
                added[image_parameter(block, kind)] = Tensor(raw.dtype, raw.shape, digest, raw.offset)
        count = add_image_prompt(graph, {name: tensor.shape for name, tensor in added.items()})
        context.report(cross_attentions=count)
        return model.replace(weights=weights.replace(added), graph=Graph.from_ir(graph))
