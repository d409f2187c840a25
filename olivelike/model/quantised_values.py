"""Quantised weights as values: how they are rounded to fewer bits, by blocks of a row or by channels, and back.

A block is `block_size` values that lie one after the other along an axis of a weight; the last one of a row may have
fewer. Each has a scale and, if it is not symmetric, a zero point: value ≈ scale · (number - zero point). Numbers of 12
bits are symmetric, and come as two: value ≈ scale · (upper + lower / 16), upper of 8 bits and lower, from 0 on, of 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView

Array = np.ndarray[Any, Any]
Method = Literal["rtn", "k_quant"]

QUANTISE: Final = "QuantizeBlocks"
"""Derives numbers, scales and zero points, or lower bits, from a weight."""

_DTYPES: Final[Mapping[tuple[int, bool], np.dtype[Any]]] = {
    (12, True): np.dtype(np.int8), (8, True): np.dtype(np.int8), (8, False): np.dtype(np.uint8),
    (4, True): np.dtype(ml_dtypes.int4), (4, False): np.dtype(ml_dtypes.uint4),
}  # fmt: skip
_SPLIT: Final = 12
"""Bits of numbers that come as two."""
_PIECE_VALUES = 1 << 18
"""Number of values that are rounded at a time, so that intermediate arrays stay in the cache."""


@dataclass(frozen=True)
class BlockFormat:
    """How a weight is written in blocks; the attributes of a `QuantizeBlocks`."""

    bits: int
    """12, 8 or 4; 12 are symmetric, and not packed."""
    block_size: int
    axis: int
    """Along which blocks lie: the one that is summed over."""
    symmetric: bool
    """Without zero points."""
    packed: bool
    """As MatMulNBits has them: rows (N, blocks, bytes of a block) and zero points (N, bytes of a row), in uint8. Else
    as DequantizeLinear does: int8 or uint8, int4 or uint4, in the weight's own shape. Of 12 bits the lower ones of
    the second half of the weight, along its first axis, are in the bytes of those of the first half, above them."""
    method: Method = "rtn"

    @classmethod
    def of(cls, attributes: JsonView) -> BlockFormat:
        """Return the format that an operator's attributes say."""
        flags = {name: bool(attributes[name]) for name in ("symmetric", "packed")}
        return cls(**{**attributes, **flags})

    def attributes(self) -> dict[str, int | str]:
        """Return it as attributes of an operator."""
        return {
            "bits": self.bits, "block_size": self.block_size, "axis": self.axis, "symmetric": int(self.symmetric),
            "packed": int(self.packed), "method": self.method,
        }  # fmt: skip

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the numbers; of 12 bits, of the upper ones."""
        if self.packed:
            return np.dtype(np.uint8)
        return _DTYPES[self.bits, self.symmetric]

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of numbers, scales, and zero points or lower bits of a weight of this shape."""
        blocks = -(-shape[self.axis] // self.block_size)
        if not self.packed:
            scales = (*shape[: self.axis], blocks, *shape[self.axis + 1 :])
            return shape, scales, (shape[0] // 2, *shape[1:]) if self.bits == _SPLIT else scales
        (rows,) = shape[: self.axis] + shape[self.axis + 1 :]
        numbers = (rows, blocks, self.block_size * self.bits // 8)
        return numbers, (rows, blocks), (rows, -(-blocks * self.bits // 8))

    def quantise(self, weight: Array) -> list[Array]:
        """Return numbers, scales, and zero points or lower bits of a weight, as the function of this name."""
        return quantise(weight, self)

    def dequantise(self, parts: list[Array], shape: tuple[int, ...]) -> Array:
        """Return the weight of this shape that they stand for, in float32."""
        return dequantise(parts, self, shape)


def quantise(weight: Array, form: BlockFormat) -> list[Array]:
    """Return numbers, scales, and zero points or lower bits of a weight; the last may be lacking.

    Scales are of the weight's own dtype. Of 12 bits its first axis has to be even.

    Rounded to nearest: symmetric by the largest magnitude of a block, else by its range, 0 included.
    """
    rows = np.moveaxis(weight, form.axis, -1)
    *outer, width = rows.shape
    blocks = -(-width // form.block_size)
    signed = np.int16 if form.bits == _SPLIT else np.int8
    numbers = np.empty((*outer, width), np.uint8 if form.packed or not form.symmetric else signed)
    scales, zeros = np.empty((*outer, blocks), weight.dtype), np.empty((*outer, blocks), np.uint8)
    half = 1 << (form.bits - 1)
    step = max(1, _PIECE_VALUES // width)
    flat, flat_numbers = rows.reshape(-1, width), numbers.reshape(-1, width)
    for start in range(0, len(flat), step):
        piece = flat[start : start + step].astype(np.float32, copy=False)
        padded = _filled(piece, blocks * form.block_size).reshape(-1, form.block_size)
        found, scale, zero = (_METHODS[form.method] if not form.symmetric else _symmetric)(padded, form.bits)
        if form.symmetric and form.packed:
            found += half
        if form.bits == _SPLIT:
            scale = scale * np.float32(16)
        flat_numbers[start : start + step] = found.reshape(len(piece), -1)[:, :width]
        scales.reshape(-1, blocks)[start : start + step] = scale.reshape(-1, blocks)
        zeros.reshape(-1, blocks)[start : start + step] = zero.reshape(-1, blocks)
    if form.packed:
        fill = half if form.symmetric else 0
        full = _filled(numbers, blocks * form.block_size, fill)
        result = [_pack(full, form.bits).reshape(len(full), blocks, -1), scales]
        return result if form.symmetric else [*result, _pack(zeros, form.bits)]
    numbers, scales = (np.moveaxis(part, -1, form.axis) for part in (numbers, scales))
    if form.bits == _SPLIT:
        first, second = np.split((numbers & 15).astype(np.uint8), 2)
        return [(numbers >> 4).astype(form.dtype, order="C"), scales, first | second << 4]
    result = [numbers.astype(form.dtype, order="C"), scales]
    return result if form.symmetric else [*result, np.moveaxis(zeros, -1, form.axis).astype(form.dtype)]


def dequantise(parts: list[Array], form: BlockFormat, shape: tuple[int, ...]) -> Array:
    """Return the weight that numbers, scales and zero points stand for, in float32.

    Args:
        parts: As `quantise` gives them.
        form: How they are written.
        shape: Of the weight.
    """
    numbers, scales, *zeros = parts
    if form.bits == _SPLIT:
        lower = np.concatenate([zeros[0] & 15, zeros[0] >> 4])
        numbers, zeros = numbers + lower.astype(np.float32) / 16, []
    width = shape[form.axis]
    blocks = -(-width // form.block_size)
    if form.packed:
        wide = _unpack(numbers.reshape(len(numbers), -1), form.bits)[:, :width]
        zero = _unpack(zeros[0], form.bits)[:, :blocks] if zeros else np.full(scales.shape, 1 << (form.bits - 1))
        scale = scales
    else:
        wide, scale = (np.moveaxis(part, form.axis, -1) for part in (numbers, scales))
        zero = np.moveaxis(zeros[0], form.axis, -1) if zeros else np.zeros(scale.shape)
    spread = [np.repeat(part.astype(np.float32), form.block_size, -1)[..., :width] for part in (zero, scale)]
    return np.ascontiguousarray(np.moveaxis((wide.astype(np.float32) - spread[0]) * spread[1], -1, form.axis))


def _symmetric(blocks: Array, bits: int) -> tuple[Array, Array, Array]:
    most = (1 << (bits - 1)) - 1
    scale = np.maximum(blocks.max(axis=1), -blocks.min(axis=1)) / np.float32(most)
    numbers = np.rint(blocks * _inverse(scale)[:, None]).astype(np.int16)
    return numbers, scale, np.zeros(len(blocks), np.uint8)


def _by_range(blocks: Array, bits: int) -> tuple[Array, Array, Array]:
    most = (1 << bits) - 1
    low, high = np.minimum(blocks.min(axis=1), 0), np.maximum(blocks.max(axis=1), 0)
    scale = (high - low) / np.float32(most)
    inverse = _inverse(scale)
    zero = np.rint(-low * inverse)
    numbers = np.clip(np.rint(blocks * inverse[:, None]) + zero[:, None], 0, most)
    return numbers.astype(np.uint8), scale, zero.astype(np.uint8)


def _k_quant(blocks: Array, bits: int) -> tuple[Array, Array, Array]:
    """Search scale and zero point by ONNX Runtime's k-quants; a block that rounding serves better is rounded."""
    from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu

    rounded = _by_range(blocks, bits)
    with np.errstate(divide="ignore", invalid="ignore"):  # Blocks of one value have no range.
        numbers, scale, zero = quant_tensor_k_quant_cpu(blocks, num_bits=bits, group_size=blocks.shape[1])
        searched = numbers.astype(np.uint8), scale.reshape(-1).astype(np.float32), zero.reshape(-1)
        errors = [
            (((numbers.astype(np.float32) - zero[:, None]) * scale[:, None] - blocks) ** 2).sum(axis=1)
            for numbers, scale, zero in (rounded, searched)
        ]
    better = errors[1] < errors[0]
    for chosen, found in zip(rounded, searched, strict=True):
        chosen[better] = found[better]
    return rounded


_METHODS: Final[Mapping[str, Callable[[Array, int], tuple[Array, Array, Array]]]] = {
    "rtn": _by_range, "k_quant": _k_quant,
}  # fmt: skip


def _filled(rows: Array, width: int, value: int = 0) -> Array:
    """Return rows of this width, the last values of which are this one where there were none."""
    lacking = width - rows.shape[-1]
    return np.pad(rows, ((0, 0), (0, lacking)), constant_values=value) if lacking else rows


def _inverse(scale: Array) -> Array:
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _pack(numbers: Array, bits: int) -> Array:
    """Put two numbers of 4 bits into each byte of a row, the first one into its lower half."""
    if bits == 8:
        return numbers
    even = np.pad(numbers, ((0, 0), (0, numbers.shape[1] % 2)))
    packed: Array = even[:, ::2] | (even[:, 1::2] << 4)
    return packed


def _unpack(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


# Channels

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


# Either


class QuantisedFormat(Protocol):
    """Methods that `BlockFormat` and `ChannelFormat` have in common."""

    def quantise(self, weight: Array) -> list[Array]:
        """Return numbers, scales and, where there are, zero points of a weight."""

    def dequantise(self, parts: list[Array], shape: tuple[int, ...]) -> Array:
        """Return the weight of this shape that they stand for, in float32."""


def quantised_format(expression: JsonView) -> QuantisedFormat:
    """Return the format that an operator of the domain `olivelike` writes, by its type and attributes."""
    kind = ChannelFormat if expression["op"] == QUANTISE_CHANNELS else BlockFormat
    return kind.of(expression["attributes"])
