"""Passes that let a UNet take what guides give: `controlnet_inputs`, `t2i_adapter_inputs`, `ip_adapter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.families import denoisers_with
from olivelike.model.guides import CONTROLNET, IP_ADAPTER, T2I_ADAPTER, GuideKind
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class _Guided(Pass):
    """Base of passes that make a further graph of a UNet's."""

    writes: ClassVar[tuple[str, ...]] = ("graph",)
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=300 << 20)


class ControlnetInputs(_Guided):
    """Write `controlnet.onnx` beside a UNet, over the same weights: the UNet with the inputs that ControlNets feed.

    It comes behind the other steps of `unet` by itself where a workflow has ControlNets.
    """

    reads: ClassVar = ("graph",)
    components: ClassVar = denoisers_with(CONTROLNET.name)

    def run(self, model: Model, context: Context) -> Model:
        """Mark the graph; count inputs and operators of the other one."""
        return _marked(model, context, CONTROLNET, "controlled_operators")


class T2iAdapterInputs(_Guided):
    """Write `t2i_adapter.onnx` beside a UNet, over the same weights: the UNet with the inputs that T2I-Adapters feed.

    It comes behind the other steps of `unet` by itself where a workflow has T2I-Adapters. With `controlnet_inputs` in
    the chain, `controlnet_t2i_adapter.onnx` takes both.
    """

    reads: ClassVar = ("architecture", "graph", "target")
    components: ClassVar = denoisers_with(T2I_ADAPTER.name)

    def run(self, model: Model, context: Context) -> Model:
        """Mark the graph; count inputs and operators of the other one."""
        return _marked(model, context, T2I_ADAPTER, "adapted_operators")


def _marked(model: Model, context: Context, kind: GuideKind, operators: str) -> Model:
    """Have a graph with the inputs of a kind written beside a UNet's; report its operators under that name."""
    from olivelike.graphs.guided_graphs import mark
    from olivelike.model import Graph
    from olivelike.model.adapter_features import taken_features

    graph, connections, on_cpu = model.require("graph").to_ir(), list[int](), False
    if kind.enters == "down":
        connections = [feature.connection for feature in taken_features(model.require("architecture").config)]
        on_cpu = context.require_target().name == "cpu"
    before, guided = len(graph.graph.inputs), mark(graph, kind, connections, on_cpu=on_cpu).graph
    context.report(**{"inputs": len(guided.inputs) - before, operators: len(guided)})
    return model.replace(graph=Graph.from_ir(graph))


class IpAdapter(_Guided):
    """Give a UNet the workflow's `ip_adapter:`, and write `ip_adapter.onnx` beside it, which takes a picture's tokens.

    It comes behind `convert` by itself where a workflow has an IP-Adapter.
    """

    reads: ClassVar = ("architecture", "weights", "graph", "guides")
    writes: ClassVar = ("weights", "graph")
    components: ClassVar = denoisers_with(IP_ADAPTER.name)
    comes_before: ClassVar = ("fuse", "float16", "bfloat16", "deepcache", "controlnet_inputs")

    def run(self, model: Model, context: Context) -> Model:
        """Add the adapter's keys and values to the weights, and to each cross-attention a second branch."""
        from olivelike.graphs.image_attention import KINDS, add_image_prompt, cross_attentions, image_parameter
        from olivelike.model import Graph, Tensor
        from olivelike.sources.adapters.ip_adapter_file import read_ip_adapter
        from olivelike.sources.files.pickled import read_pickle_table

        path = context.require_guide(IP_ADAPTER.key)
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
