"""`int8`: compute convolutions and linear layers in eight bits, within ranges that calibration saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from ._calibrated import Calibrated

if TYPE_CHECKING:
    from olivelike.graphs.static_quantisation import Rounding
    from olivelike.model.targets import Target


class Int8(Calibrated):
    """Compute convolutions and linear layers in 8 bits; a few pictures are drawn first, to see ranges."""

    conflicts: ClassVar = ("weights8", "weights4", "fp8")

    activations: Literal["uint8", "int8"] = "uint8"
    """`uint8` has a zero point, and is what CPUs multiply by int8 weights; `int8` is symmetric."""

    def unsupported_reason(self, target: Target) -> str | None:
        """The target must compute in 8 bits what stands between QuantizeLinear and DequantizeLinear."""
        if target.rounded == "int8":
            return None
        from olivelike.model.targets import targets_that

        return (
            f"target {target.name!r} is not known to compute in 8 bits what stands between QuantizeLinear and "
            f"DequantizeLinear; use target {targets_that(lambda one: one.rounded == 'int8')}"
        )

    def rounding(self, target: Target) -> Rounding:
        """Return the type of `activations`; where convolutions give nothing but 8 bits, what they give is rounded."""
        from olivelike.graphs.static_quantisation import Rounding

        return Rounding(self.activations, self.method, self.percentile, outputs=target.rounded_outputs)
