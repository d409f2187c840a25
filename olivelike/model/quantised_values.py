"""Quantised weights as values: how they are rounded to fewer bits, by blocks of a row or by channels, and back.

A block is `block_size` values that lie one after the other along an axis of a weight; the last one of a row may have
fewer. Each has a scale and, if it is not symmetric, a zero point: value ≈ scale · (number - zero point). Numbers of 12
bits come as two. Packed, they are numbers of 8 bits, and of 4 bits of what those leave, symmetric, with scales of their
own. Else they are symmetric: value ≈ scale · (upper + lower / 16), upper of 8 bits and lower, from 0 on, of 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import ml_dtypes
import numpy as np

from olivelike._untrusted import JsonView
from olivelike.model.half_values import in_row_order, widen

Array = np.ndarray[Any, Any]
Method = Literal["rtn", "k_quant"]

QUANTISE: Final = "QuantizeBlocks"
"""Derives numbers, scales and zero points, or lower bits, from a weight; those of a rest come last."""

_DTYPES: Final[Mapping[tuple[int, bool], np.dtype[Any]]] = {
    (12, True): np.dtype(np.int8), (8, True): np.dtype(np.int8), (8, False): np.dtype(np.uint8),
    (4, True): np.dtype(ml_dtypes.int4), (4, False): np.dtype(ml_dtypes.uint4),
}  # fmt: skip
_SPLIT: Final = 12
"""Bits of numbers that come as two."""
_BYTE: Final = 8
_PIECE_VALUES = 1 << 17
"""Number of values that are rounded at a time, so that intermediate arrays stay in the cache."""
_LEAST_SCALE: Final = np.float32(2.0**-128)
"""Float32 has no inverse of it: blocks of less become zeros."""
_SHORT: Final = 128
"""Length of a block up to which its extremes are found by columns: NumPy takes 40 ns for a row, however short."""
_COLUMN: Final = 8
"""Bytes of such a column, which NumPy moves at once."""
_NO_FRACTIONS: Final = np.float32(3 << 22)


@dataclass(frozen=True)
class BlockFormat:
    """How a weight is written in blocks; the attributes of a `QuantizeBlocks`."""

    bits: int
    """12, 8 or 4; 12 are symmetric, unless packed."""
    block_size: int
    axis: int
    """Along which blocks lie: the one that is summed over."""
    symmetric: bool
    """Without zero points."""
    packed: bool
    """As MatMulNBits has them: rows (N, blocks, bytes of a block) and zero points (N, bytes of a row), in uint8. Else
    as DequantizeLinear does: int8 or uint8, int4 or uint4, in the weight's own shape. Of 12 bits, if not packed,
    the lower ones of the second half of the weight, along its first axis, are in the bytes of those of the first half,
    above them."""
    method: Method = "rtn"
    columns: tuple[int, ...] = ()
    """Widths of pieces along the last axis, each of which has numbers and scales of its own: of matrices in 8 bits that
    are symmetric, not packed, and have blocks along the first axis. None for a matrix in one piece."""

    @classmethod
    def of(cls, attributes: JsonView) -> BlockFormat:
        """Return the format that an operator's attributes say."""
        flags = {name: bool(attributes[name]) for name in ("symmetric", "packed")}
        return cls(**{**attributes, **flags, "columns": tuple(attributes.get("columns", ()))})

    def attributes(self) -> dict[str, int | str | list[int]]:
        """Return it as attributes of an operator."""
        return {
            "bits": self.bits, "block_size": self.block_size, "axis": self.axis, "symmetric": int(self.symmetric),
            "packed": int(self.packed), "method": self.method, **({"columns": [*self.columns]} if self.columns else {}),
        }  # fmt: skip

    @property
    def number_type(self) -> np.dtype[Any]:
        """NumPy's type of the numbers while they are made."""
        return np.dtype(np.uint16 if self.bits == _SPLIT else np.uint8)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the numbers; of 12 bits, of the upper ones."""
        if self.packed:
            return np.dtype(np.uint8)
        return _DTYPES[self.bits, self.symmetric]

    def in_two(self) -> tuple[BlockFormat, BlockFormat]:
        """Return the formats of packed numbers of 12 bits, and of what the first of them leave."""
        return replace(self, bits=8), replace(self, bits=4, symmetric=True, method="rtn")

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of numbers, scales, and zero points or lower bits of a weight of this shape.

        Of 12 bits that are packed, numbers and scales of the rest follow; of pieces, those of the next.
        """
        if self.columns:
            whole = replace(self, columns=())
            return tuple(one for width in self.columns for one in whole.shapes((*shape[:-1], width))[:2])
        if self.packed and self.bits == _SPLIT:
            first, rest = (form.shapes(shape) for form in self.in_two())
            return (*first, *rest[:2])
        blocks = -(-shape[self.axis] // self.block_size)
        if not self.packed:
            scales = (*shape[: self.axis], blocks, *shape[self.axis + 1 :])
            return shape, scales, (shape[0] // 2, *shape[1:]) if self.bits == _SPLIT else scales
        (rows,) = shape[: self.axis] + shape[self.axis + 1 :]
        numbers = (rows, blocks, self.block_size * self.bits // 8)
        return numbers, (rows, blocks), (rows, -(-blocks * self.bits // 8))

    def quantise(self, weight: Array, dtype: np.dtype[Any] | None = None) -> list[Array]:
        """Return numbers, scales, and zero points or lower bits of a weight, as the function of this name."""
        return quantise(weight, self, dtype)

    def dequantise(self, parts: list[Array], shape: tuple[int, ...]) -> Array:
        """Return the weight of this shape that they stand for, in float32."""
        return dequantise(parts, self, shape)


def quantise(weight: Array, form: BlockFormat, dtype: np.dtype[Any] | None = None) -> list[Array]:
    """Return numbers, scales, and zero points or lower bits of a weight; the last may be lacking.

    Of 12 bits its first axis has to be even.

    Rounded to nearest: symmetric by the largest magnitude of a block, else by its range, 0 included.

    Args:
        weight: Floats of two or four bytes.
        form: How they are written.
        dtype: Of the scales, by default the weight's own.
    """
    # As bits, which NumPy moves and compares faster than numbers.
    rows = np.moveaxis(weight.view(f"u{weight.itemsize}"), form.axis, -1)
    *outer, width = rows.shape
    flat = rows.reshape(-1, width)
    blocks = -(-width // form.block_size)
    full = blocks * form.block_size
    forms = form.in_two() if form.packed and form.bits == _SPLIT else (form,)
    made = [
        (
            np.empty((len(flat), full * one.bits // _BYTE if one.packed else width), one.number_type),
            np.empty((len(flat), blocks), dtype or weight.dtype),
            np.empty((len(flat), blocks), np.uint8),
        )
        for one in forms
    ]
    step = min(len(flat), max(1, _PIECE_VALUES // full))
    wide, found = np.empty((step, full), np.float32), np.empty((step, full), forms[0].number_type)
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        values = np.ascontiguousarray(_filled(flat[part], full)).view(weight.dtype)
        count = len(values)
        for one, (numbers, scales, zeros) in zip(forms, made, strict=True):
            whole = numbers.shape[1] == full
            into = numbers[part] if whole else found[:count]
            rounded = _rounded(values, one, wide[:count], into)
            scales[part], zeros[part] = (each.reshape(count, -1) for each in rounded)
            if one is not forms[-1]:
                values = _left(values, one, into, scales[part], zeros[part])
            if one.packed:
                into[:, width:] = 1 << (one.bits - 1) if one.symmetric else 0
            if not whole:
                numbers[part] = _pack(into, one.bits) if one.packed else into[:, :width]
    if form.packed:
        return [array for one, parts in zip(forms, made, strict=True) for array in _packed(one, *parts)]
    numbers, scales, zeros = (np.moveaxis(part.reshape(*outer, -1), -1, form.axis) for part in made[0])
    if form.columns:
        ends = np.cumsum(form.columns)[:-1]
        both = zip(np.split(numbers.view(np.int8), ends, axis=-1), np.split(scales, ends, axis=-1), strict=True)
        return [in_row_order(one) for piece in both for one in piece]
    numbers = in_row_order(numbers)
    if form.bits == _SPLIT:
        first, second = np.split(numbers.astype(np.uint8) & 15, 2)
        return [(numbers.view(np.int16) >> 4).astype(form.dtype), scales, first | second << 4]
    result = [numbers.view(_DTYPES[_BYTE, form.symmetric]).astype(form.dtype, copy=False), scales]
    return result if form.symmetric else [*result, zeros.astype(form.dtype)]


def _packed(form: BlockFormat, numbers: Array, scales: Array, zeros: Array) -> list[Array]:
    """Return numbers in bytes, scales and zero points in the shapes of MatMulNBits."""
    result = [numbers.reshape(*scales.shape, -1), scales]
    return result if form.symmetric else [*result, _pack(zeros, form.bits)]


def _left(values: Array, form: BlockFormat, numbers: Array, scales: Array, zeros: Array) -> Array:
    """Return what numbers of 8 bits leave of values, in float32, as `dequantise` widens them."""
    left = np.empty(values.shape, np.float32)
    blocks, near = (np.reshape(one, (scales.size, -1)) for one in (left, numbers.astype(np.float32)))
    near -= np.float32(1 << (form.bits - 1)) if form.symmetric else zeros.reshape(-1, 1).astype(np.float32)
    near *= scales.reshape(-1, 1).astype(np.float32)
    np.subtract(widen(values, left).reshape(blocks.shape), near, out=blocks)
    return left


def dequantise(parts: list[Array], form: BlockFormat, shape: tuple[int, ...]) -> Array:
    """Return the weight that numbers, scales and zero points stand for, in float32.

    Args:
        parts: As `quantise` gives them.
        form: How they are written.
        shape: Of the weight.
    """
    if form.columns:
        parts = [np.concatenate(parts[kind::2], axis=-1) for kind in (0, 1)]
    if form.packed and form.bits == _SPLIT:
        first, rest = form.in_two()
        return dequantise(parts[:-2], first, shape) + dequantise(parts[-2:], rest, shape)
    numbers, scales, *zeros = parts
    if form.bits == _SPLIT:
        lower = np.concatenate([zeros[0] & 15, zeros[0] >> 4])
        numbers, zeros = numbers + lower.astype(np.float32) / 16, []
    width = shape[form.axis]
    blocks = -(-width // form.block_size)
    if form.packed:  # Blocks are whole.
        full = _unpack(numbers.reshape(len(numbers), -1), form.bits).astype(np.float32)
        by_block = full.reshape(len(numbers), blocks, form.block_size)
        zero = _unpack(zeros[0], form.bits)[:, :blocks, None] if zeros else np.float32(1 << (form.bits - 1))
        by_block -= zero
        by_block *= scales[:, :, None].astype(np.float32)
        return np.ascontiguousarray(np.moveaxis(full[:, :width], -1, form.axis))
    wide, scale = (np.moveaxis(part, form.axis, -1) for part in (numbers, scales))
    zero = np.moveaxis(zeros[0], form.axis, -1) if zeros else np.zeros(scale.shape)
    spread = [np.repeat(part.astype(np.float32), form.block_size, -1)[..., :width] for part in (zero, scale)]
    return np.ascontiguousarray(np.moveaxis((wide.astype(np.float32) - spread[0]) * spread[1], -1, form.axis))


def _rounded(weight: Array, form: BlockFormat, wide: Array, numbers: Array) -> tuple[Array, Array]:
    """Round whole blocks into `numbers`; return their scales, in float32, and zero points.

    Args:
        weight: Values, in their order.
        wide: Room for them in float32.
        numbers: Negative ones as two's complements.
    """
    blocks = weight.reshape(-1, form.block_size)
    low, high = _ranges(blocks)
    values = widen(blocks, wide.reshape(blocks.shape))
    into = numbers.reshape(blocks.shape)
    if not form.symmetric:
        return _METHODS[form.method](values, low, high, form.bits, into)
    half = 1 << (form.bits - 1)
    scale = np.maximum(-low, high) / np.float32(half - 1)
    _round(values, _inverse(scale), into)
    if form.packed:
        into += into.dtype.type(half)
    return scale * np.float32(16 if form.bits == _SPLIT else 1), np.zeros(len(blocks), np.uint8)


def _ranges(blocks: Array) -> tuple[Array, Array]:
    """Return the least and the largest value of each block, 0 included, in float32; NaN if there is one.

    Bits of floats are in the order of magnitudes: as unsigned numbers those of negative values are the largest, as
    signed ones those of positive values. NumPy finds the largest integers several times faster than floats.
    """
    signed, unsigned = np.dtype(f"i{blocks.itemsize}"), np.dtype(f"u{blocks.itemsize}")
    count, width = blocks.shape
    together = _COLUMN // blocks.itemsize
    if width <= _SHORT and width % together == 0:
        columns = blocks.view(f"u{_COLUMN}").T.copy()
        few = [columns.view(kind).max(axis=0).reshape(count, together) for kind in (unsigned, signed)]
        low, high = (one.T.copy().max(axis=0) for one in few)
    else:
        low, high = (np.asarray(blocks.view(kind).max(axis=1)) for kind in (unsigned, signed))
    low[low <= np.iinfo(signed).max] = 0
    np.maximum(high, 0, out=high)
    return low.view(blocks.dtype).astype(np.float32), high.view(blocks.dtype).astype(np.float32)


def _round(values: Array, inverse: Array, numbers: Array) -> None:
    """Put values, times what their blocks are multiplied by, into numbers; `values` is used up.

    Float32 has no bits for fractions where 1.5 · 2²³ is added: the sum is rounded to nearest, and its lowest bits are
    the number.
    """
    values *= inverse[:, None]
    values += _NO_FRACTIONS
    np.copyto(numbers, values.view(np.uint32), casting="unsafe")


def _by_range(values: Array, low: Array, high: Array, bits: int, numbers: Array) -> tuple[Array, Array]:
    most = (1 << bits) - 1
    scale = (high - low) / np.float32(most)
    inverse = _inverse(scale)
    zero = np.rint(-low * inverse)
    _round(values, inverse, numbers)
    whole_zero = zero.astype(np.uint8)
    numbers += whole_zero[:, None]
    above = np.flatnonzero(np.rint(high * inverse) + zero > most)  # Range and zero point were both rounded up.
    if above.size:
        numbers[above] = np.minimum(values[above] - _NO_FRACTIONS + zero[above, None], most)
    return scale, whole_zero


def _k_quant(values: Array, low: Array, high: Array, bits: int, numbers: Array) -> tuple[Array, Array]:
    """Search scale and zero point by ONNX Runtime's k-quants; a block that rounding serves better is rounded."""
    from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu

    rounded = (numbers, *_by_range(values.copy(), low, high, bits, numbers))
    with np.errstate(divide="ignore", invalid="ignore"):  # Blocks of one value have no range.
        found, scale, zero = quant_tensor_k_quant_cpu(values, num_bits=bits, group_size=values.shape[1])
        searched = found.astype(np.uint8), scale.reshape(-1).astype(np.float32), zero.reshape(-1)
        errors = [
            (((whole.astype(np.float32) - zero[:, None]) * scale[:, None] - values) ** 2).sum(axis=1)
            for whole, scale, zero in (rounded, searched)
        ]
    better = errors[1] < errors[0]
    for chosen, other in zip(rounded, searched, strict=True):
        chosen[better] = other[better]
    return rounded[1:]


_METHODS: Final[Mapping[str, Callable[[Array, Array, Array, int, Array], tuple[Array, Array]]]] = {
    "rtn": _by_range, "k_quant": _k_quant,
}  # fmt: skip


def _filled(rows: Array, width: int) -> Array:
    """Return rows of this width, zeros where there were no values."""
    lacking = width - rows.shape[-1]
    return np.pad(rows, ((0, 0), (0, lacking))) if lacking else rows


def _inverse(scale: Array) -> Array:
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale > _LEAST_SCALE)


def _pack(numbers: Array, bits: int) -> Array:
    """Put two numbers of 4 bits into each byte of a row, the first one into its lower half."""
    if bits == 8:
        return numbers
    pairs: Array = _filled(numbers, numbers.shape[1] + numbers.shape[1] % 2).view("<u2")
    pairs = pairs | pairs >> 4
    return pairs.astype(np.uint8)


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

    def quantise(self, weight: Array, dtype: np.dtype[Any] | None = None) -> list[Array]:
        """Return numbers, of the weight's shape, and scales, of `dtype`; a channel's largest magnitude fits."""
        most = 127.0 if self.type == "int8" else E4M3_MAX
        others = tuple(axis for axis in range(weight.ndim) if axis != self.axis)
        wide = weight.astype(np.float32)
        largest = np.maximum(wide.max(axis=others, keepdims=True), -wide.min(axis=others, keepdims=True))
        scales = (largest / np.float32(most)).astype(dtype or weight.dtype)
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

    def quantise(self, weight: Array, dtype: np.dtype[Any] | None = None) -> list[Array]:
        """Return numbers, scales, by default of the weight's dtype, and, where there are, zero points of a weight."""

    def dequantise(self, parts: list[Array], shape: tuple[int, ...]) -> Array:
        """Return the weight of this shape that they stand for, in float32."""


def quantised_format(expression: JsonView) -> QuantisedFormat:
    """Return the format that an operator of the domain `olivelike` writes, by its type and attributes."""
    kind = ChannelFormat if expression["op"] == QUANTISE_CHANNELS else BlockFormat
    return kind.of(expression["attributes"])
