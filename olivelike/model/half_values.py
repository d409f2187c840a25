"""Half precision as values: its types, and how float32 is rounded to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np

_FLOAT16: Final = 10
_BFLOAT16: Final = 16
HALVES: Final[Mapping[int, str]] = {_FLOAT16: "fp16", _BFLOAT16: "bf16"}
"""The types of half precision, by ONNX's numbers (which its `DataType`s equal), and what workflows call them."""
HALF_MAX = 65504.0
"""Largest finite float16."""
_DTYPES: Final = {_FLOAT16: np.dtype(np.float16), _BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
_LARGEST: Final = {_FLOAT16: HALF_MAX, _BFLOAT16: float.fromhex("0x1.fep127")}
_MAGNITUDE = np.uint16(0x7FFF)
_INFINITE = np.uint16(0x7C00)
"""The least magnitude, as bits, that is no finite float16."""
_NO_COPIES_OF_SIGN = np.int32(-0x70000001)
"""Bits of a float32 but for the upper three of its exponent."""
_BIASES = np.float32(2.0 ** (127 - 15))
_PIECE = 1 << 17
_STRIP = 16
"""Columns of a transposed matrix that are copied at a time."""


def to_half(array: np.ndarray[Any, Any], dtype: int = _FLOAT16) -> tuple[np.ndarray[Any, Any], dict[str, int]]:
    """Round float32 values to half precision; infinities and NaN stay what they are.

    What is beyond the largest number of the type becomes that: ±65,504 in float16, ±3.39e38 in bfloat16. Returns the
    array in half precision, and how many finite values were `saturated`, and non-zero ones `flushed` to zero.
    """
    if array.ndim == 2 and not array.flags.c_contiguous and array.flags.f_contiguous:
        turned, counts = to_half(array.T, dtype)
        return turned.T, counts
    half = np.empty(array.shape, _DTYPES[dtype])
    largest = _LARGEST[dtype]
    largest_bits = np.asarray(largest, half.dtype).view(np.uint16)
    lost = {"saturated": 0, "flushed": 0}
    wide, narrow = array.reshape(-1), half.reshape(-1)
    # Pieces that fit the cache: this runs over every weight of a model.
    for start in range(0, wide.size, _PIECE):
        source, target = wide[start : start + _PIECE], narrow[start : start + _PIECE]
        with np.errstate(over="ignore", invalid="ignore"):
            target[...] = source
        # Without its sign, no zero hides, and numbers are in the order of their bits; NumPy is faster at integers.
        bits = target.view(np.uint16) & _MAGNITUDE
        nonzero = np.count_nonzero(bits)
        if nonzero < target.size:
            lost["flushed"] += int(np.count_nonzero(source) - nonzero)
        if bits.max() >= largest_bits:
            over = np.isfinite(source) & (np.abs(source) > largest)
            target[over] = np.copysign(largest, source[over])
            lost["saturated"] += int(np.count_nonzero(over))
    return half, {kind: count for kind, count in lost.items() if count}


def widen(array: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Put floats of two or four bytes into `out`, of their shape, in float32 and row order; return it."""
    if array.dtype != np.float16 or (array.view(np.uint16) & _MAGNITUDE).max(initial=0) >= _INFINITE:
        out[...] = array
        return out
    # NumPy takes three times as long: the bits become those of a float32 of another bias, which a factor sets right.
    bits = out.view(np.int32)
    bits[...] = array.view(np.int16)
    bits <<= 13
    bits &= _NO_COPIES_OF_SIGN
    out *= _BIASES
    return out


def in_row_order(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, or a copy of it, in row order; a transposed view is copied by strips that fit the cache."""
    if array.flags.c_contiguous or array.ndim != 2:
        return np.asarray(array, order="C")
    copy = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _STRIP):
        copy[:, start : start + _STRIP] = array[:, start : start + _STRIP]
    return copy
