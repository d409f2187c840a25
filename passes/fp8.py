"""`fp8`: compute convolutions, linear layers and attention in float8, within ranges that calibration saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ._calibrated import Calibrated

if TYPE_CHECKING:
    from olivelike.graphs.static_quantisation import Rounding
    from olivelike.model.targets import Target


class Fp8(Calibrated):
    """Compute what multiplies, attention too, in float8 (E4M3); a few pictures are drawn first, to see ranges."""

    conflicts: ClassVar = ("weights8", "weights4", "int8")

    attention: bool = True
    """Compute both products of attention in it, where the width of a head is a multiple of 16."""

    @property
    def attends(self) -> bool:
        """As the option says."""
        return self.attention

    def unsupported_reason(self, target: Target) -> str | None:
        """The target must compute in float8 what stands between QuantizeLinear and DequantizeLinear."""
        if target.rounded == "fp8":
            return None
        from olivelike.model.targets import targets_that

        return (
            f"target {target.name!r} multiplies nothing in float8; use target "
            f"{targets_that(lambda one: one.rounded == 'fp8')}, or `int8` for "
            f"{targets_that(lambda one: one.rounded == 'int8')}"
        )

    def rounding(self, target: Target) -> Rounding:  # noqa: ARG002
        """Return float8, whatever the target."""
        from olivelike.graphs.static_quantisation import Rounding

        return Rounding("fp8", self.method, self.percentile)
