"""How a quantised weight is written, by the operator that derives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from olivelike.model.block_values import BlockFormat
from olivelike.model.channel_values import QUANTISE_CHANNELS, ChannelFormat

if TYPE_CHECKING:
    import numpy as np

    from olivelike._untrusted import JsonView

    Array = np.ndarray[Any, Any]


class QuantisedFormat(Protocol):
    """What `BlockFormat` and `ChannelFormat` have in common."""

    def quantise(self, weight: Array) -> list[Array]:
        """Return numbers, scales and, where there are, zero points of a weight."""

    def dequantise(self, parts: list[Array], shape: tuple[int, ...]) -> Array:
        """Return the weight of this shape that they stand for, in float32."""


def quantised_format(expression: JsonView) -> QuantisedFormat:
    """Return the format that an operator of the domain `olivelike` writes, by its type and attributes."""
    kind = ChannelFormat if expression["op"] == QUANTISE_CHANNELS else BlockFormat
    return kind.of(expression["attributes"])
