"""Weights in 8 bits with a scale for each channel, or one for all: what operators of 8 bits multiply by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView

Array = np.ndarray[Any, Any]
ChannelType = Literal["int8", "fp8"]

QUANTISE_CHANNELS: Final = "QuantizeChannels"
"""Operator of the domain `olivelike` that derives numbers and scales from a weight; no written file has it."""
E4M3_MAX: Final = 448.0
"""The largest float8 E4M3 number, of the kind without infinities."""


@dataclass(frozen=True)
class ChannelFormat:
    """How a weight is written; the attributes of a `QuantizeChannels`."""

    type: ChannelType
    """`int8`, symmetric, from -127 to 127; `fp8` is E4M3."""
    axis: int | None
    """The axis of channels; `None` for one scale for all."""

    @classmethod
    def of(cls, attributes: JsonView) -> ChannelFormat:
        """Return the format that an operator's attributes say."""
        return cls(attributes["type"], attributes.get("axis"))

    def attributes(self) -> dict[str, int | str]:
        """Return it as attributes of an operator."""
        return {"type": self.type, **({} if self.axis is None else {"axis": self.axis})}

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the numbers."""
        return np.dtype(np.int8 if self.type == "int8" else ml_dtypes.float8_e4m3fn)

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scales of a weight of this shape."""
        return () if self.axis is None else (shape[self.axis],)

    def quantise(self, weight: Array) -> list[Array]:
        """Return numbers, of the weight's shape, and scales, of its dtype; a channel's largest magnitude fits."""
        most = 127.0 if self.type == "int8" else E4M3_MAX
        others = tuple(axis for axis in range(weight.ndim) if axis != self.axis)
        wide = weight.astype(np.float32)
        largest = np.maximum(wide.max(axis=others, keepdims=True), -wide.min(axis=others, keepdims=True))
        scales = (largest / np.float32(most)).astype(weight.dtype)
        scales[scales == 0] = 1  # Zeros alone, or what is too small for a scale of this type.
        numbers = wide / scales.astype(np.float32)
        if self.type == "int8":
            np.rint(numbers, out=numbers)
        np.clip(numbers, -most, most, out=numbers)
        return [numbers.astype(self.dtype), scales.reshape(self.scale_shape(weight.shape))]

    def dequantise(self, parts: list[Array], shape: tuple[int, ...]) -> Array:
        """Return the weight that numbers and scales stand for, in float32."""
        numbers, scales = (part.astype(np.float32) for part in parts)
        spread = [1] * len(shape)
        if self.axis is not None:
            spread[self.axis] = shape[self.axis]
        result: Array = numbers * scales.reshape(spread)
        return result
