"""`float16: {auto: true}`: half precision wherever trials against torch find it to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Resources

from .float16 import Float16

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.families.family import HalfPolicy
    from olivelike.model import Model


class Float16Auto(Float16):
    """What `float16` is where `auto` is set: it reads the weights too, and needs memory for torch's network."""

    chosen_by: ClassVar = "auto"
    reads: ClassVar = ("architecture", "weights", "graph", "target")
    optional: ClassVar = ()
    resources: ClassVar = Resources(memory_bytes=1800 << 20, weights_scale=0.5)

    def further_blocks(self, model: Model, context: Context, policy: HalfPolicy) -> tuple[str, ...]:
        """Search for the fewest blocks without which the result is wrong."""
        from olivelike.measure.verify.half_search import HalfSearch

        def convert(blocks: tuple[str, ...]) -> ir.Model:
            half = self.conversion(model, context, policy, blocks)
            half.convert()
            return half.model

        search = HalfSearch(
            model, context, convert, limit=self.max_relative_error, samples=self.samples, seed=self.seed
        )
        blocks, facts = search.run()
        context.report(auto=facts)
        return blocks
