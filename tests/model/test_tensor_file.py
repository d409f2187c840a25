"""Reading tensors from files."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from olivelike.errors import SourceError
from olivelike.model import Tensor, Weights
from olivelike.model.tensor_file import DTYPES, block_rows, read_part, read_tensor
from olivelike.model.weights import ITEM_SIZES, LowRank


def test_every_dtype_has_its_size():
    assert {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()} == ITEM_SIZES


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_read_from_its_place_in_the_file(tmp_path, dtype):
    values = np.arange(6).reshape(2, 3).astype(DTYPES[dtype])
    (tmp_path / "file").write_bytes(b"header " + values.tobytes() + b"rest")
    read = read_tensor(Tensor(dtype, (2, 3), "", 7), {"": tmp_path / "file"})
    assert read.dtype == DTYPES[dtype]
    assert read.tobytes() == values.tobytes()
    assert read.shape == (2, 3)


def test_scalars_and_empty_tensors_keep_their_shape(tmp_path):
    (tmp_path / "file").write_bytes(np.float32(2.5).tobytes())
    assert read_tensor(Tensor("F32", (), "", 0), {"": tmp_path / "file"}) == np.float32(2.5)
    assert read_tensor(Tensor("F32", (0, 3), "", 4), {"": tmp_path / "file"}).shape == (0, 3)


def test_bfloat16_keeps_its_type(tmp_path):
    (tmp_path / "file").write_bytes(np.array([1.5], ml_dtypes.bfloat16).tobytes())
    assert read_tensor(Tensor("BF16", (1,), "", 0), {"": tmp_path / "file"}).astype(np.float32) == [1.5]


def test_a_file_that_ends_early_is_named(tmp_path):
    (tmp_path / "short").write_bytes(bytes(10))
    with pytest.raises(SourceError, match=r"short: ends before byte 16; fetch the file again"):
        read_tensor(Tensor("F32", (4,), "", 0), {"": tmp_path / "short"})


def a_matrix_with_products(folder, *, transposed=False):
    """Return a table entry of 700 x 300 values in half precision, its files, and what it should read as in float64."""
    numbers = np.random.default_rng(0)
    base = numbers.standard_normal((700, 300)).astype(np.float16)
    factors = [numbers.standard_normal(shape).astype(np.float16) for shape in ((700, 4), (4, 300), (700, 2), (2, 300))]
    (folder / "base").write_bytes((base.T if transposed else base).tobytes())
    (folder / "lora").write_bytes(b"".join(array.tobytes() for array in factors))
    starts = np.cumsum([0, *(array.nbytes for array in factors)])
    up, down, up2, down2 = (Tensor("F16", a.shape, "l", int(s)) for a, s in zip(factors, starts[:4], strict=True))
    added = (LowRank(up, down, 0.5, 0.8), LowRank(up2, down2, 1.0, -0.3))
    wide = [array.astype(np.float64) for array in (base, *factors)]
    expected = wide[0] + 0.5 * 0.8 * wide[1] @ wide[2] - 0.3 * wide[3] @ wide[4]
    files = {"b": folder / "base", "l": folder / "lora"}
    return Tensor("F16", (700, 300), "b", 0, transposed, added), files, expected


@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_added_to_what_is_stored(tmp_path, transposed):
    tensor, files, expected = a_matrix_with_products(tmp_path, transposed=transposed)
    read = read_tensor(tensor, files)
    assert (read.dtype, read.shape) == (np.float32, (700, 300))
    assert np.linalg.norm(read - expected) < 1e-6 * np.linalg.norm(expected)


def test_a_part_is_that_of_the_whole_to_the_bit(tmp_path):
    tensor, files, _ = a_matrix_with_products(tmp_path)
    whole = read_tensor(tensor, files).reshape(-1)
    step = block_rows(300) * 300
    parts = [read_part(tensor, files, at, min(step, whole.size - at)) for at in range(0, whole.size, step)]
    assert len(parts) > 1
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_table_with_products_is_read_as_it_was_written(tmp_path):
    tensor, files, _ = a_matrix_with_products(tmp_path)
    table = Weights({"a": tensor, "b": Tensor("F32", (2,), "b", 8)})
    assert dict(Weights.from_bytes(table.to_bytes())) == dict(table)
    assert table.files == files.keys()


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("form", [{}, {"transposed": True}, {"rolled": 2}])
def test_values_of_8_bits_are_multiplied_by_the_scale_of_their_stored_row(tmp_path, rows, form):
    numbers = np.random.default_rng(1)
    stored = numbers.standard_normal((6, 4)).astype(ml_dtypes.float8_e4m3fn)
    scale = numbers.uniform(0.1, 2, rows).astype(np.float32)
    (tmp_path / "file").write_bytes(stored.tobytes() + scale.tobytes())
    files, expected = {"": tmp_path / "file"}, stored.astype(np.float32) * scale[:, None]
    whole = Tensor("F8_E4M3", (6, 4), "", 0, scale=Tensor("F32", (rows,), "", 24))
    for start, count in ((0, 24), (5, 9), (23, 1)):
        assert np.array_equal(read_part(whole, files, start, count), expected.reshape(-1)[start : start + count])
    tensor = replace(whole, shape=(4, 6) if "transposed" in form else (6, 4), **form)
    expected = expected.T if "transposed" in form else np.roll(expected, -form.get("rolled", 0), axis=0)
    assert np.array_equal(read_tensor(tensor, files), expected)
    assert read_tensor(tensor, files).dtype == DTYPES[tensor.read_dtype] == np.float32
    assert Tensor.from_json(tensor.to_json()) == tensor
    assert [piece.dtype for piece in tensor.pieces] == ["F8_E4M3", "F32"]
