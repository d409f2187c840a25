"""`int8` and `fp8`: compute what multiplies in eight bits, within ranges that calibration saw."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from olivelike.families import TEXT_TO_PICTURE, blocks_for
from olivelike.model.components import SAFETY_CHECKER
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from olivelike._untrusted import Json
    from olivelike.graphs.static_quantisation import Rounding, StaticQuantisation
    from olivelike.model import Model
    from olivelike.model.targets import Target


class Calibrated(Pass):
    """Compute in eight bits, within ranges that calibration saw."""

    reads: ClassVar[tuple[str, ...]] = ("graph", "target", "calibration")
    writes: ClassVar = ("graph",)
    components: ClassVar = (*TEXT_TO_PICTURE, SAFETY_CHECKER)
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=600 << 20, weights_scale=0.27)

    method: Literal["min_max", "percentile", "entropy"] = "min_max"
    """Share of the values from calibration that is kept: all, all but a few on both sides, or what tells most."""

    percentile: Annotated[float, Field(gt=50, le=100, allow_inf_nan=False)] = 99.99
    """For `percentile`: how many of 100 values are kept."""

    convolutions: bool = True
    """Compute them in eight bits."""

    linear: bool = True
    """Compute linear layers in eight bits."""

    float_blocks: tuple[str, ...] = blocks_for("int8").in_float
    """Blocks that stay in float: module paths with wildcards, and what lies inside."""

    auto: bool = False
    """Find the fewest further blocks that must stay in float for the result to be right, by trials."""

    error_of: Literal["outputs", "latents", "pictures"] = "outputs"
    """For `auto`: what must be right. Outputs are compared with torch's on random inputs; `latents`, at the end, and
    `pictures` of what calibration draws, with those of float."""

    max_relative_error: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-1
    """For `auto`: the largest ‖difference‖ / ‖original‖ of an output, or of a picture's latents, that is right."""

    min_psnr: Annotated[float, Field(gt=0, le=100)] = 30
    """For `auto` by pictures: the least PSNR of a picture that is right, in dB."""

    samples: Annotated[int, Field(ge=1, le=64)] = 2
    """For `auto`: number of random inputs of each trial."""

    seed: Annotated[int, Field(ge=0)] = 0
    """For `auto`: of the first input; the others have the numbers after it."""

    @abstractmethod
    def rounding(self, target: Target) -> Rounding:
        """Return how activations are rounded."""

    @property
    def attends(self) -> bool:
        """Whether attention that is spelled out is rounded, too."""
        return False

    def run(self, model: Model, context: Context) -> Model:
        """Put QuantizeLinear and DequantizeLinear around what is computed in eight bits, and count."""
        from olivelike.graphs.inspect.quantised import facts
        from olivelike.model import Graph

        quantisation = self.quantisation(model, context, self.further_blocks(model, context))
        context.report(**quantisation.quantise(), kept_weights=facts(quantisation.model))
        return model.replace(graph=Graph.from_ir(quantisation.model))

    def further_blocks(self, model: Model, context: Context) -> tuple[str, ...]:  # noqa: ARG002
        """Return blocks that stay in float beside those that the options name."""
        return ()

    def quantisation(self, model: Model, context: Context, blocks: tuple[str, ...]) -> StaticQuantisation:
        """Return the quantisation that leaves `blocks`, too, in float; it is yet to be made."""
        from olivelike.graphs.static_quantisation import StaticQuantisation

        return StaticQuantisation(
            model.require("graph").to_ir(),
            context.require_calibration(),
            self.rounding(context.require_target()),
            convolutions=self.convolutions,
            linear=self.linear,
            attention=self.attends,
            float_blocks=(*self.float_blocks, *blocks),
        )

    def searched_blocks(
        self, search: Callable[..., tuple[tuple[str, ...], Json]], model: Model, context: Context
    ) -> tuple[str, ...]:
        """Return the blocks that `fewest_in_float` finds, for passes that read what it needs."""

        def convert(blocks: tuple[str, ...]) -> ir.Model:
            quantisation = self.quantisation(model, context, blocks)
            quantisation.quantise()
            return quantisation.model

        blocks, facts = search(
            model, context, convert, of=self.error_of, limit=self.max_relative_error, min_psnr=self.min_psnr,
            samples=self.samples, seed=self.seed,
        )  # fmt: skip
        context.report(auto=facts)
        return blocks


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
