"""`float16` and `bfloat16`: compute in half precision, except where that is known to go wrong or is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from olivelike.pass_api import Context, Pass, PrecisionPlan, Resources

if TYPE_CHECKING:
    from olivelike.families.family import HalfPolicy
    from olivelike.graphs.precision import HalfPrecision
    from olivelike.model import Model
    from olivelike.model.targets import Target

Operators = Annotated[tuple[str, ...], Field(description="Operator types that stay in float32, such as `Softmax`.")]
Blocks = Annotated[
    tuple[str, ...],
    Field(
        description="Blocks that stay in float32: module paths with wildcards, such as `up_blocks.*.resnets.0`; what "
        "lies\ninside a matching block is meant too, but of `=up_blocks.1` only what no block inside it has."
    ),
]


class Float16(Pass):
    """Convert a graph to half precision; run it after all fusions."""

    reads: ClassVar[tuple[str, ...]] = ("architecture", "graph", "target")
    writes: ClassVar = ("graph",)
    optional: ClassVar[tuple[str, ...]] = ("architecture",)
    conflicts: ClassVar = ("bfloat16",)
    comes_before: ClassVar = ("weights8", "weights4", "int8", "fp8")
    resources: ClassVar = Resources(memory_bytes=300 << 20, weights_scale=0.5)

    keep_io: bool = False
    """Leave graph inputs and outputs in float32."""

    force_fp32: Operators = ()

    force_fp32_blocks: Blocks = ()

    known_overflows: bool = True
    """Keep in float32 what is known to overflow: attention of SD 2.x UNets, SDXL's VAE decoder unless its config has
    `force_upcast: false`, and the sums that blocks of FLUX, Z-Image, Qwen-Image, T5 and Qwen3 add to."""

    auto: bool = False
    """Find the fewest further blocks that must stay in float32 for the result to be right, by trials against torch."""

    max_relative_error: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-2
    """For `auto`: the largest ‖difference‖ / ‖torch's‖ of an output that is right."""

    samples: Annotated[int, Field(ge=1, le=64)] = 2
    """For `auto`: number of random inputs of each trial."""

    seed: Annotated[int, Field(ge=0)] = 0
    """For `auto`: of the first input; the others have the numbers after it."""

    def converts_to(self) -> PrecisionPlan:
        """All but what stays in float32."""
        return PrecisionPlan("fp16", self.force_fp32, self.known_overflows)

    def run(self, model: Model, context: Context) -> Model:
        """Cast parameters and values to float16; count what its range can't hold."""
        from olivelike.families import half_policy
        from olivelike.families.family import HalfPolicy
        from olivelike.model import Graph

        policy = HalfPolicy()
        if self.known_overflows and model.architecture is not None:
            policy = half_policy(model.architecture)
        if policy.reason:
            context.report(kept_fp32=policy.reason)
        if policy.whole:
            return model
        half = self.conversion(model, context, policy, self.further_blocks(model, context, policy))
        context.report(**half.convert())
        return model.replace(graph=Graph.from_ir(half.model))

    def further_blocks(self, model: Model, context: Context, policy: HalfPolicy) -> tuple[str, ...]:  # noqa: ARG002
        """Return blocks that stay in float32 beside those that the options name."""
        return ()

    def conversion(self, model: Model, context: Context, policy: HalfPolicy, blocks: tuple[str, ...]) -> HalfPrecision:
        """Return the conversion that leaves `blocks`, too, in float32; it is yet to be made."""
        from olivelike.graphs.precision import HalfPrecision

        return HalfPrecision(
            model.require("graph").to_ir(),
            keep_io=self.keep_io,
            forced_operators=self.force_fp32,
            forced_blocks=(*self.force_fp32_blocks, *blocks),
            policy_operators=policy.operators,
            streams=policy.streams,
            target=context.target,
        )


class Bfloat16(Pass):
    """Convert a graph to bfloat16, inputs and outputs excepted; run it after all fusions."""

    reads: ClassVar = ("graph", "target")
    writes: ClassVar = ("graph",)
    resources: ClassVar = Resources(memory_bytes=300 << 20, weights_scale=0.5)
    conflicts: ClassVar = ("float16",)
    comes_before: ClassVar = ("weights8", "weights4", "int8", "fp8")

    force_fp32: Operators = ()

    force_fp32_blocks: Blocks = ()

    def converts_to(self) -> PrecisionPlan:
        """All but what stays in float32."""
        return PrecisionPlan("bf16", self.force_fp32)

    def unsupported_reason(self, target: Target) -> str | None:
        """OpenVINO and CUDA are known to have such kernels: ONNX Runtime's CPU lacks most in bfloat16."""
        if target.bfloat16:
            return None
        from olivelike.model.targets import targets_that

        known = targets_that(lambda one: one.bfloat16)
        return f"target {target.name!r} runs no graphs in bfloat16; use `float16`, or target {known}"

    def run(self, model: Model, context: Context) -> Model:
        """Cast parameters and values to bfloat16; NumPy has no such type, so the interface stays in float32."""
        import onnx_ir as ir

        from olivelike.graphs.precision import HalfPrecision
        from olivelike.model import Graph

        half = HalfPrecision(
            model.require("graph").to_ir(),
            half=ir.DataType.BFLOAT16,
            keep_io=True,
            forced_operators=self.force_fp32,
            forced_blocks=self.force_fp32_blocks,
            target=context.target,
        )
        context.report(**half.convert())
        return model.replace(graph=Graph.from_ir(half.model))
