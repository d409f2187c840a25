"""`int8: {auto: true}`: 8 bits wherever trials, against torch or of drawing, find them to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.pass_api import Context, Resources

from .int8 import Int8

if TYPE_CHECKING:
    from olivelike.model import Model


class Int8Auto(Int8):
    """What `int8` is where `auto` is set: it reads the weights too, and needs memory for torch's network."""

    chosen_by: ClassVar = "auto"
    reads: ClassVar = ("architecture", "weights", "graph", "target", "calibration", "drawing")
    resources: ClassVar = Resources(memory_bytes=1800 << 20, weights_scale=0.27)

    def further_blocks(self, model: Model, context: Context) -> tuple[str, ...]:
        """Search for the fewest blocks without which the result is right."""
        from olivelike.measure.verify.rounding_search import fewest_in_float

        return self.searched_blocks(fewest_in_float, model, context)
