"""Forms in which GGUF files hold weights in few bits: blocks of values with scales of their own.

Names, numbers and sizes are GGML's (https://github.com/ggml-org/ggml, `ggml.h` and `ggml-common.h`); the values of a
block are what the library `gguf` makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class BlockForm(NamedTuple):
    """How many values a block has, and in how many bytes."""

    number: int
    """GGML's number of the form, as files have it."""
    values: int
    nbytes: int


BLOCK_FORMS: Final[Mapping[str, BlockForm]] = {
    "Q4_0": BlockForm(2, 32, 18), "Q4_1": BlockForm(3, 32, 20), "Q5_0": BlockForm(6, 32, 22),
    "Q5_1": BlockForm(7, 32, 24), "Q8_0": BlockForm(8, 32, 34),
    "Q2_K": BlockForm(10, 256, 84), "Q3_K": BlockForm(11, 256, 110), "Q4_K": BlockForm(12, 256, 144),
    "Q5_K": BlockForm(13, 256, 176), "Q6_K": BlockForm(14, 256, 210),
    "IQ2_XXS": BlockForm(16, 256, 66), "IQ2_XS": BlockForm(17, 256, 74), "IQ3_XXS": BlockForm(18, 256, 98),
    "IQ1_S": BlockForm(19, 256, 50), "IQ4_NL": BlockForm(20, 32, 18), "IQ3_S": BlockForm(21, 256, 110),
    "IQ2_S": BlockForm(22, 256, 82), "IQ4_XS": BlockForm(23, 256, 136), "IQ1_M": BlockForm(29, 256, 56),
}  # fmt: skip
"""Form, by the name that stands for a dtype in tables of weights."""
_PIECE: Final = 1 << 17
"""Values that are decoded at a time: what the library makes on the way fits the cache."""


def decode_blocks(data: Array, form: str) -> Array:
    """Return the values of blocks, float32.

    Args:
        data: Bytes of whole blocks, uint8 of one dimension.
        form: One of `BLOCK_FORMS`.
    """
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize

    number, values, nbytes = BLOCK_FORMS[form]
    blocks = data.reshape(-1, nbytes)
    found, step = np.empty((len(blocks), values), np.float32), _PIECE // values
    # Scales of a damaged file may be infinite; values that are no numbers are told of where they are written.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            # As one row, since the library takes few rows at a time.
            row = blocks[start : start + step].reshape(1, -1)
            found[start : start + step] = dequantize(row, GGMLQuantizationType(number)).reshape(-1, values)
    return found.reshape(-1)
