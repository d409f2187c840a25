"""`float16`: compute in half precision, except where that is known to go wrong or is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class Float16(Pass):
    """Convert a graph to half precision; run it after all fusions."""

    reads: ClassVar = ("architecture", "graph", "target")
    writes: ClassVar = ("graph",)
    optional: ClassVar = ("architecture",)
    tools: ClassVar = ("onnx-ir", "onnx")
    resources: ClassVar = Resources(memory_bytes=300 << 20, weights_scale=0.5)

    keep_io: bool = False
    """Leave graph inputs and outputs in float32."""

    force_fp32: tuple[str, ...] = ()
    """Operator types that stay in float32, such as `Softmax`."""

    force_fp32_blocks: tuple[str, ...] = ()
    """Blocks that stay in float32: module paths with wildcards, such as `up_blocks.*.resnets.0`; what lies
    inside a matching block is meant too."""

    known_overflows: bool = True
    """Keep in float32 what is known to overflow: attention of SD 2.x UNets, and SDXL's VAE decoder unless its
    config has `force_upcast: false`."""

    def run(self, model: Model, context: Context) -> Model:
        """Cast parameters and values to float16; count what its range can't hold."""
        from olivelike.half import HalfPrecision
        from olivelike.model import Graph
        from olivelike.targets.precision import HalfPolicy, half_policy

        assert model.graph is not None
        policy = HalfPolicy()
        if self.known_overflows and model.architecture is not None:
            policy = half_policy(model.architecture)
        if policy.reason:
            context.facts["kept_fp32"] = policy.reason
        if policy.whole:
            return model
        graph = model.graph.to_ir()
        half = HalfPrecision(
            graph,
            keep_io=self.keep_io,
            forced_operators=self.force_fp32,
            forced_blocks=self.force_fp32_blocks,
            policy_operators=policy.operators,
            target=context.target,
        )
        context.facts.update(half.convert())
        return model.replace(graph=Graph.from_ir(graph))
