"""Reading one tensor's bytes from the file that holds them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from olivelike.model.weights import Tensor

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "U16": np.uint16,
    "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "I32": np.int32, "U32": np.uint32,
    "F64": np.float64, "I64": np.int64, "U64": np.uint64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
"""NumPy dtype of each safetensors dtype."""


def read_tensor(tensor: Tensor, path: Path) -> np.ndarray[Any, Any]:
    """Read a tensor into memory, as an array of its shape and dtype; a transposed one is a view in column order.

    Raises `SourceError` when the file can't be read, or is shorter than its table says.
    """
    array = read_part(tensor, path, 0, math.prod(tensor.shape))
    return array.reshape(tensor.shape[::-1]).T if tensor.transposed else array.reshape(tensor.shape)


def read_part(tensor: Tensor, path: Path, start: int, count: int) -> np.ndarray[Any, Any]:
    """Read `count` of a tensor's elements from the one at `start`, in the order in which they are stored.

    Raises `SourceError` as `read_tensor`.
    """
    dtype = np.dtype(DTYPES[tensor.dtype])
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(tensor.offset + start * dtype.itemsize)
            array: np.ndarray[Any, Any] = np.fromfile(file, dtype, count)
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror or error}; fetch the file again") from error
    if array.size != count:
        raise SourceError(f"{path}: ends before byte {tensor.offset + tensor.nbytes}; fetch the file again")
    return array
