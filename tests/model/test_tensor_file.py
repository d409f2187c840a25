"""Reading tensors from files."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from olivelike.errors import SourceError
from olivelike.model import Tensor
from olivelike.model.tensor_file import DTYPES, read_tensor
from olivelike.model.weights import ITEM_SIZES


def test_every_dtype_has_its_size():
    assert {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()} == ITEM_SIZES


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_read_from_its_place_in_the_file(tmp_path, dtype):
    values = np.arange(6).reshape(2, 3).astype(DTYPES[dtype])
    (tmp_path / "file").write_bytes(b"header " + values.tobytes() + b"rest")
    read = read_tensor(Tensor(dtype, (2, 3), "", 7), tmp_path / "file")
    assert read.dtype == DTYPES[dtype]
    assert read.tobytes() == values.tobytes()
    assert read.shape == (2, 3)


def test_scalars_and_empty_tensors_keep_their_shape(tmp_path):
    (tmp_path / "file").write_bytes(np.float32(2.5).tobytes())
    assert read_tensor(Tensor("F32", (), "", 0), tmp_path / "file") == np.float32(2.5)
    assert read_tensor(Tensor("F32", (0, 3), "", 4), tmp_path / "file").shape == (0, 3)


def test_bfloat16_keeps_its_type(tmp_path):
    (tmp_path / "file").write_bytes(np.array([1.5], ml_dtypes.bfloat16).tobytes())
    assert read_tensor(Tensor("BF16", (1,), "", 0), tmp_path / "file").astype(np.float32) == [1.5]


def test_a_file_that_ends_early_is_named(tmp_path):
    (tmp_path / "short").write_bytes(bytes(10))
    with pytest.raises(SourceError, match=r"short: ends before byte 16; fetch the file again"):
        read_tensor(Tensor("F32", (4,), "", 0), tmp_path / "short")
