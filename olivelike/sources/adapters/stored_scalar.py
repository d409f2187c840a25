"""Reading a stored scalar, such as an alpha, without a library."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.model.weights import ITEM_SIZES

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from olivelike.sources import RawTensor

_FORMATS = {"F64": "<d", "F32": "<f", "F16": "<e", "I64": "<q", "I32": "<i", "I16": "<h", "U8": "<B"}


def read_scalar(file: BinaryIO, path: Path, name: str, tensor: RawTensor) -> float:
    """Return the one value of a stored tensor, a finite number.

    Raises:
        SourceError: if it has more values than one, or is no number.
    """
    if math.prod(tensor.shape) != 1 or tensor.dtype not in (*_FORMATS, "BF16"):
        raise SourceError(
            f"{path}: {name} should be one number and is {tensor.dtype} of shape {list(tensor.shape)}; "
            "get the file again",
        )
    file.seek(tensor.offset)
    data = file.read(ITEM_SIZES[tensor.dtype])
    if tensor.dtype == "BF16":  # the upper half of a float32
        data, code = b"\0\0" + data, "<f"
    else:
        code = _FORMATS[tensor.dtype]
    value = float(struct.unpack(code, data)[0])
    if not math.isfinite(value):
        raise SourceError(f"{path}: {name} is {value}; get the file again, or another version of it")
    return value
