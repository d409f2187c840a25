"""`float16`: compute in half precision, except where that is known to go wrong, is asked for, or is found to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from olivelike.pass_api import Context, Pass, Resources, by_option

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.precision.half import HalfPrecision
    from olivelike.graphs.precision.policy import HalfPolicy
    from olivelike.model import Model


class Float16(Pass):
    """Convert a graph to half precision; run it after all fusions."""

    reads: ClassVar = by_option(
        "auto", ("architecture", "graph", "target"), ("architecture", "weights", "graph", "target")
    )
    writes: ClassVar = ("graph",)
    optional: ClassVar = by_option("auto", ("architecture",), ())
    unreached: ClassVar = by_option("auto", ("olivelike.measure.verify.half_search",), ())
    resources: ClassVar = by_option(
        "auto",
        Resources(memory_bytes=300 << 20, weights_scale=0.5),
        Resources(memory_bytes=1800 << 20, weights_scale=0.5),
    )

    keep_io: bool = False
    """Leave graph inputs and outputs in float32."""

    force_fp32: tuple[str, ...] = ()
    """Operator types that stay in float32, such as `Softmax`."""

    force_fp32_blocks: tuple[str, ...] = ()
    """Blocks that stay in float32: module paths with wildcards, such as `up_blocks.*.resnets.0`; what lies
    inside a matching block is meant too, but of `=up_blocks.1` only what no block inside it has."""

    known_overflows: bool = True
    """Keep in float32 what is known to overflow: attention of SD 2.x UNets, and SDXL's VAE decoder unless its
    config has `force_upcast: false`."""

    auto: bool = False
    """Find the fewest further blocks that must stay in float32 for the result to be right, by trials against torch."""

    max_relative_error: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-2
    """For `auto`: the largest ‖difference‖ / ‖torch's‖ of an output that is right."""

    samples: Annotated[int, Field(ge=1, le=64)] = 2
    """For `auto`: number of random inputs of each trial."""

    seed: Annotated[int, Field(ge=0)] = 0
    """For `auto`: of the first input; the others have the numbers after it."""

    def run(self, model: Model, context: Context) -> Model:
        """Cast parameters and values to float16; count what its range can't hold."""
        from olivelike.graphs.precision.policy import HalfPolicy, half_policy
        from olivelike.model import Graph

        policy = HalfPolicy()
        if self.known_overflows and model.architecture is not None:
            policy = half_policy(model.architecture)
        if policy.reason:
            context.facts["kept_fp32"] = policy.reason
        if policy.whole:
            return model
        blocks = self._search(model, context, policy) if self.auto else ()
        half = self._half(model, context, policy, blocks)
        context.facts.update(half.convert())
        return model.replace(graph=Graph.from_ir(half.model))

    def _search(self, model: Model, context: Context, policy: HalfPolicy) -> tuple[str, ...]:
        from olivelike.measure.verify.half_search import HalfSearch

        def convert(blocks: tuple[str, ...]) -> ir.Model:
            half = self._half(model, context, policy, blocks)
            half.convert()
            return half.model

        search = HalfSearch(
            model, context, convert, limit=self.max_relative_error, samples=self.samples, seed=self.seed
        )
        blocks, context.facts["auto"] = search.run()
        return blocks

    def _half(
        self, model: Model, context: Context, policy: HalfPolicy, blocks: tuple[str, ...]
    ) -> HalfPrecision:
        from olivelike.graphs.precision.half import HalfPrecision

        assert model.graph is not None
        return HalfPrecision(
            model.graph.to_ir(),
            keep_io=self.keep_io,
            forced_operators=self.force_fp32,
            forced_blocks=(*self.force_fp32_blocks, *blocks),
            policy_operators=policy.operators,
            target=context.target,
        )
