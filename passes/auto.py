"""`auto` of `float16`, `int8` and `fp8`: fewer bits wherever trials, against torch or of drawing, find that right.

The classes are apart from those of the passes, whose keys then do not hold the code of the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Resources

from .eight_bits import Calibrated, Fp8, Int8
from .float16 import Float16

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.families.family import HalfPolicy
    from olivelike.model import Model


class Float16Auto(Float16):
    """`float16` with `auto` set: it reads the weights too, and needs memory for torch's network."""

    chosen_by: ClassVar = "auto"
    reads: ClassVar = ("architecture", "weights", "graph", "target")
    optional: ClassVar = ()
    resources: ClassVar = Resources(memory_bytes=1800 << 20, weights_scale=0.5)

    def further_blocks(self, model: Model, context: Context, policy: HalfPolicy) -> tuple[str, ...]:
        """Search for the fewest blocks without which the result is wrong."""
        from olivelike.measure.verify.float_search import FloatSearch

        def convert(blocks: tuple[str, ...]) -> ir.Model:
            half = self.conversion(model, context, policy, blocks)
            half.convert()
            return half.model

        search = FloatSearch(
            model, context, convert,
            step="float16", limit=self.max_relative_error, samples=self.samples, seed=self.seed,
        )  # fmt: skip
        blocks, facts = search.run()
        context.report(auto=facts)
        return blocks


class _ByTrials(Calibrated):
    """The meaning of `auto` in passes that compute in eight bits."""

    chosen_by: ClassVar = "auto"
    reads: ClassVar = ("architecture", "weights", "graph", "target", "calibration", "drawing")
    resources: ClassVar = Resources(memory_bytes=1800 << 20, weights_scale=0.27)

    def further_blocks(self, model: Model, context: Context) -> tuple[str, ...]:
        """Search for the fewest blocks without which the result is right."""
        from olivelike.measure.verify.float_search import fewest_in_float

        return self.searched_blocks(fewest_in_float, model, context)


class Int8Auto(_ByTrials, Int8):
    """`int8` with `auto` set: it reads the weights too, and needs memory for torch's network."""


class Fp8Auto(_ByTrials, Fp8):
    """`fp8` with `auto` set: it reads the weights too, and needs memory for torch's network."""
