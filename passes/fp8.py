"""`fp8`: compute convolutions and linear layers in eight bits of float, within ranges that calibration saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model
    from olivelike.model.targets import Target


class Fp8(Pass):
    """Compute convolutions and linear layers in float8 (E4M3); a few pictures are drawn first, to see ranges."""

    reads: ClassVar[tuple[str, ...]] = ("graph", "target", "calibration")
    writes: ClassVar = ("graph",)
    components: ClassVar = ("text_encoder", "text_encoder_2", "unet", "vae_decoder", "safety_checker")
    conflicts: ClassVar = ("weights8", "weights4", "int8")
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=600 << 20, weights_scale=0.27)

    method: Literal["min_max", "percentile", "entropy"] = "min_max"
    """What of the values that calibration saw is kept: all, all but a few on both sides, or what tells most."""

    percentile: Annotated[float, Field(gt=50, le=100, allow_inf_nan=False)] = 99.99
    """For `percentile`: how many of 100 values are kept."""

    convolutions: bool = True
    """Compute them in float8."""

    linear: bool = True
    """Compute linear layers in float8."""

    float_blocks: tuple[str, ...] = (
        "conv_in", "conv_out", "*.conv_in", "*.conv_out", "time_embedding", "*.time_emb_proj",
    )  # fmt: skip
    """Blocks that stay in float: module paths with wildcards, and what lies inside."""

    def unsupported_reason(self, target: Target) -> str | None:
        """The target must compute in float8 what stands between QuantizeLinear and DequantizeLinear."""
        if target.rounded == "fp8":
            return None
        return (
            f"target {target.name!r} multiplies nothing in float8; use target `tensorrt` or `tensorrt_rtx`, or `int8` "
            "for `cpu` and `openvino`"
        )

    def run(self, model: Model, context: Context) -> Model:
        """Put QuantizeLinear and DequantizeLinear around what is computed in float8, and count."""
        from olivelike.graphs.inspect.quantised import facts
        from olivelike.graphs.static_quantisation import Rounding, StaticQuantisation
        from olivelike.model import Graph

        graph = model.require("graph").to_ir()
        quantisation = StaticQuantisation(
            graph,
            context.require_calibration(),
            Rounding("fp8", self.method, self.percentile),
            convolutions=self.convolutions,
            linear=self.linear,
            float_blocks=self.float_blocks,
        )
        context.report(**quantisation.quantise(), kept_weights=facts(graph))
        return model.replace(graph=Graph.from_ir(graph))
