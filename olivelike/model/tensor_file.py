"""Reading one tensor from its files: decoded, multiplied by its scale, products of low rank added."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from olivelike._untrusted import open_file
from olivelike.digest import digest_bytes
from olivelike.errors import PassError, SourceError
from olivelike.model.block_forms import BLOCK_FORMS, decode_blocks
from olivelike.model.weights import IDENTITY, Tensor

Array = np.ndarray[Any, Any]

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "U16": np.uint16,
    "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "I32": np.int32, "U32": np.uint32,
    "F64": np.float64, "I64": np.int64, "U64": np.uint64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
"""NumPy dtype of each safetensors dtype."""


_BLOCK = 1 << 17
"""Elements to which products are added at a time: so many in float32 stay in a core's cache."""


_SINGLE = 1 << 18
"""Multiplications up to which OpenBLAS starts no threads for a product (`GEMM_MULTITHREAD_THRESHOLD`, 4 · 2¹⁶)."""


def stored_tensor(array: Array) -> tuple[Tensor, bytes]:
    """Return an array as the entry of a table, and the bytes that it names by their digest.

    Raises `PassError` if safetensors has no such dtype.
    """
    array = np.asarray(array, order="C")
    dtype = next((name for name, numpy in DTYPES.items() if array.dtype == numpy), None)
    if dtype is None:
        raise PassError(f"a tensor of dtype {array.dtype} can't be stored")
    data = array.tobytes()
    return Tensor(dtype, array.shape, digest_bytes(data), 0), data


def read_tensor(tensor: Tensor, files: Mapping[str, Path]) -> Array:
    """Read a tensor into memory, as an array of its shape and dtype; a transposed one is a view in column order.

    What is `added` to it, or multiplies it, makes it float32. Raises `SourceError` when one of `files`, by digest,
    can't be read, or is shorter than its table says.
    """
    stored = _read(tensor, files, 0, math.prod(tensor.shape))
    array = stored.reshape(tensor.shape[::-1]).T if tensor.transposed else stored.reshape(tensor.shape)
    array = np.roll(array, -tensor.rolled, axis=0) if tensor.rolled else array
    return add_products(array, read_products(tensor, files)) if tensor.added else array


def read_part(tensor: Tensor, files: Mapping[str, Path], start: int, count: int) -> Array:
    """Read `count` of a tensor's elements from the one at `start`, in the order in which they are stored.

    It is neither transposed nor rolled. Raises `SourceError` as `read_tensor`. Where something is added, the part
    begins and ends at a multiple of `block_elements`, or at the end, so that each element is the one that
    `read_tensor` returns.
    """
    stored = _read(tensor, files, start, count)
    if not tensor.added:
        return stored
    columns = math.prod(tensor.shape[1:])
    return add_products(stored.reshape(-1, columns), read_products(tensor, files), start // columns).reshape(-1)


def _read(tensor: Tensor, files: Mapping[str, Path], start: int, count: int) -> Array:
    """Read stored elements, times their scale."""
    array = _read_stored(tensor, files, start, count)
    if tensor.scale is None:
        return array
    rows = math.prod(tensor.scale.shape)
    scale = _read_stored(tensor.scale, files, 0, rows).astype(np.float32)
    if rows > 1:
        columns = math.prod(tensor.shape) // rows
        scale = np.repeat(scale[start // columns : -(-(start + count) // columns)], columns)
        scale = scale[start % columns :][:count]
    return np.multiply(array.astype(np.float32), scale)


def _read_stored(tensor: Tensor, files: Mapping[str, Path], start: int, count: int) -> Array:
    if tensor.dtype == IDENTITY:
        rows, columns = np.divmod(np.arange(start, start + count), tensor.shape[-1])
        return np.equal(rows, columns).astype(np.float32)
    if tensor.dtype not in BLOCK_FORMS:
        dtype = np.dtype(DTYPES[tensor.dtype])
        return _from_file(tensor, files, dtype, start * dtype.itemsize, count)
    _, values, nbytes = BLOCK_FORMS[tensor.dtype]
    first, end = start // values, -(-(start + count) // values)
    data = _from_file(tensor, files, np.dtype(np.uint8), first * nbytes, (end - first) * nbytes)
    return decode_blocks(data, tensor.dtype)[start - first * values :][:count]


def _from_file(tensor: Tensor, files: Mapping[str, Path], dtype: np.dtype[Any], skipped: int, count: int) -> Array:
    path = files[tensor.file]
    try:
        with open_file(path) as file:
            file.seek(tensor.offset + skipped)
            array: Array = np.fromfile(file, dtype, count)
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror or error}; fetch the file again") from error
    if array.size != count:
        raise SourceError(f"{path}: ends before byte {tensor.offset + tensor.nbytes}; fetch the file again")
    return array


@dataclass(frozen=True, eq=False)
class Product:
    """A product up · down, and what it is multiplied by: see `LowRank`."""

    up: Array
    """(rows, rank), float32."""
    down: Array
    """(rank, columns), float32."""
    scale: float
    weight: float

    def rows(self, rows: slice) -> Array:
        """Return rows of the product, float32."""
        change = _multiply(self.up[rows], self.down)
        change *= np.float32(self.scale)
        change *= np.float32(self.weight)
        return change


def _multiply(left: Array, right: Array) -> Array:
    """Multiply matrices in pieces that OpenBLAS multiplies in the calling thread.

    Its own threads wait by spinning, so that on a busy machine, or called from several threads, the same took ten times
    as long.
    """
    (rows, rank), columns = left.shape, right.shape[1]
    product = np.empty((rows, columns), np.float32)
    wide = max(1, _SINGLE // (2 * max(1, rank)))
    for start in range(0, columns, wide):
        piece, out = right[:, start : start + wide], product[:, start : start + wide]
        high = max(2, _SINGLE // max(1, piece.size))
        for top in range(0, rows, high):
            np.matmul(left[top : top + high], piece, out=out[top : top + high])
    return product


def read_products(tensor: Tensor, files: Mapping[str, Path]) -> list[Product]:
    """Read what is added to a tensor; raises as `read_tensor`."""
    return [
        Product(_matrix(read_tensor(one.up, files)), _matrix(read_tensor(one.down, files)), one.scale, one.weight)
        for one in tensor.added
    ]


def _matrix(array: Array) -> Array:
    return array.reshape(len(array), -1).astype(np.float32)


def add_products(base: Array, products: Sequence[Product], first_row: int = 0) -> Array:
    """Return a tensor plus products of its shape, first dimension by all others, in float32 and row order.

    Args:
        base: Rows of the tensor, of any floating dtype.
        products: Their sum is added, in this order.
        first_row: The first of the rows; a multiple of `block_rows`.
    """
    matrix = base.reshape(len(base), -1)
    whole = np.empty(matrix.shape, np.float32)
    for rows in blocks(*matrix.shape):
        add_to_rows(matrix[rows], products, slice(rows.start + first_row, rows.stop + first_row), whole[rows])
    return whole.reshape(base.shape)


def add_to_rows(base: Array, products: Sequence[Product], rows: slice, out: Array) -> None:
    """Put rows of a matrix plus those of products into `out`, (rows, columns) in float32; `base` may be `out`."""
    first, *others = (product.rows(rows) for product in products)
    for change in others:
        first += change
    np.add(first, base.astype(np.float32, copy=False), out=out)


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield the rows that are added to at a time: always the same ones, so that a sum never depends on who asks."""
    step = block_rows(columns)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def block_rows(columns: int) -> int:
    """Return how many rows of a matrix are added to at a time."""
    return max(1, _BLOCK // max(1, columns))
