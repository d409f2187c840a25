"""Which parts of a network stay in float32 by default when a graph is converted to half precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.model.families import FAMILIES

if TYPE_CHECKING:
    from olivelike.model.architecture import Architecture

HALF_PASSES: Final = {"fp16": "float16", "bf16": "bfloat16"}
"""The pass that brings a graph to each half precision."""
_ATTENTION: Final = ("MultiHeadAttention", "Attention")


@dataclass(frozen=True)
class HalfPolicy:
    """What stays in float32, and why; `reason` goes into the run record."""

    whole: bool = False
    """The whole graph stays in float32."""
    operators: tuple[str, ...] = ()
    """Operator types that stay in float32."""
    reason: str = ""


def half_policy(architecture: Architecture) -> HalfPolicy:
    """Return the default for one network.

    - The UNet of Stable Diffusion 2.x: its attention overflows float16 (black images), so it stays in float32.
    - SDXL's VAE decoder overflows as a whole, unless its config says `force_upcast: false`, as that of the
      float16-safe VAE does.
    """
    config = architecture.config
    if architecture.class_name == "UNet2DConditionModel" and _widths(config.get("cross_attention_dim")) == {
        FAMILIES["sd2"].text_width
    }:
        return HalfPolicy(operators=_ATTENTION, reason="attention of Stable Diffusion 2.x overflows float16")
    if (
        architecture.component == "vae_decoder"
        and config.get("scaling_factor") == FAMILIES["sdxl"].scaling_factor
        and config.get("force_upcast", True)
    ):
        reason = "SDXL's VAE decoder overflows float16; a VAE with force_upcast: false does not"
        return HalfPolicy(whole=True, reason=reason)
    return HalfPolicy()


def _widths(value: object) -> set[object]:
    """Return the distinct widths of a config entry that is one number, or one per level."""
    return set(value) if isinstance(value, list | tuple) else {value}
