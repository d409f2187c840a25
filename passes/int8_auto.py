"""`int8: {auto: true}`: 8 bits wherever trials against torch find them to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Resources

from .int8 import Int8

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.model import Model


class Int8Auto(Int8):
    """What `int8` is where `auto` is set: it reads the weights too, and needs memory for torch's network."""

    chosen_by: ClassVar = "auto"
    reads: ClassVar = ("architecture", "weights", "graph", "target", "calibration")
    resources: ClassVar = Resources(memory_bytes=1800 << 20, weights_scale=0.27)

    def further_blocks(self, model: Model, context: Context) -> tuple[str, ...]:
        """Search for the fewest blocks without which the result is right."""
        from olivelike.measure.verify.rounding_search import RoundingSearch

        def convert(blocks: tuple[str, ...]) -> ir.Model:
            quantisation = self.quantisation(model, context, blocks)
            quantisation.quantise()
            return quantisation.model

        search = RoundingSearch(
            model, context, convert, limit=self.max_relative_error, samples=self.samples, seed=self.seed
        )
        blocks, facts = search.run()
        context.report(auto=facts)
        return blocks
