"""Float types, and the values of arrays that are no numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_PIECE: Final = 1 << 17
"""Values that fit the cache."""


def is_float(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type is a float one, of whatever width; NumPy's own test does not know bfloat16."""
    return "float" in dtype.name


def count_not_finite(array: np.ndarray[Any, Any]) -> int:
    """Return how many values are infinite or NaN; 0 for types that have none."""
    if not is_float(array.dtype):
        return 0
    infinity = np.array(np.inf, array.dtype)
    if not np.isinf(infinity):  # Float8 without infinities, and smaller types.
        return int(np.count_nonzero(np.isnan(array)))
    unsigned = np.dtype(f"u{array.itemsize}")
    positive, negative = (np.array(value, array.dtype).view(unsigned) for value in (infinity, -infinity))
    signed, flat, count = np.dtype(f"i{array.itemsize}"), array.reshape(-1), 0
    # NumPy finds the largest of integers faster than anything of floats, and in their bits nothing is above infinity.
    for start in range(0, flat.size, _PIECE):
        bits = flat[start : start + _PIECE].view(unsigned)
        if bits.max() >= negative or bits.view(signed).max() >= positive.view(signed):
            count += int(np.count_nonzero(~np.isfinite(flat[start : start + _PIECE])))
    return count
