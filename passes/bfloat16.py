"""`bfloat16`: compute in half precision with the range of float32, where the target's runtime has that type."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Pass, PrecisionPlan, Resources

if TYPE_CHECKING:
    from olivelike.model import Model
    from olivelike.model.targets import Target


class Bfloat16(Pass):
    """Convert a graph to bfloat16, inputs and outputs excepted; run it after all fusions."""

    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)
    resources: ClassVar = Resources(memory_bytes=300 << 20, weights_scale=0.5)
    conflicts: ClassVar = ("float16",)
    comes_before: ClassVar = ("weights8", "weights4", "int8", "fp8")

    force_fp32: tuple[str, ...] = ()
    """Operator types that stay in float32, such as `Softmax`."""

    force_fp32_blocks: tuple[str, ...] = ()
    """Blocks that stay in float32: module paths with wildcards, such as `up_blocks.*.resnets.0`; what lies
    inside a matching block is meant too, but of `=up_blocks.1` only what no block inside it has."""

    def converts_to(self) -> PrecisionPlan:
        """All but what stays in float32."""
        return PrecisionPlan("bf16", self.force_fp32)

    def unsupported_reason(self, target: Target) -> str | None:
        """OpenVINO alone is known to run such graphs: ONNX Runtime's CPU lacks convolutions in bfloat16."""
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
        )
        context.report(**half.convert())
        return model.replace(graph=Graph.from_ir(half.model))
