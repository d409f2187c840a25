"""Weights in 12, 8 and 4 bits as values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from olivelike.model.half_values import widen
from olivelike.model.quantised_values import BlockFormat, dequantise, quantise


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "most"), [(8, 7e-3), (4, 0.13)])
@pytest.mark.parametrize(
    ("shape", "axis", "packed"),
    [((100, 7), 0, True), ((6, 200), 1, True), ((6, 40), 1, False), ((4, 96, 3, 3), 1, False)],
)
def test_numbers_stand_for_the_weight_also_in_blocks_that_do_not_divide_it(bits, most, symmetric, shape, axis, packed):
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    form = BlockFormat(bits, 32, axis, symmetric, packed)
    parts = quantise(weight, form)
    assert [part.shape for part in parts] == list(form.shapes(shape))[: 2 if symmetric else 3]
    assert (parts[0].dtype, parts[1].dtype) == (form.dtype, np.float32)
    error = dequantise(parts, form, shape) - weight
    assert np.linalg.norm(error) < most * np.linalg.norm(weight)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_in_12_bits_are_almost_the_weight(axis, dtype):
    weight = np.random.default_rng(0).normal(0, 0.02, size=(4, 96, 3, 3)).astype(dtype)
    form = BlockFormat(12, weight.shape[axis], axis, symmetric=True, packed=False)
    parts = quantise(weight, form)
    assert [part.dtype for part in parts] == [np.int8, dtype, np.uint8]
    assert [part.shape for part in parts] == list(form.shapes(weight.shape))
    wide = weight.astype(np.float32)
    assert np.linalg.norm(dequantise(parts, form, weight.shape) - wide) < 5e-4 * np.linalg.norm(wide)


@pytest.mark.parametrize("method", ["rtn", "k_quant"])
def test_blocks_of_zeros_stay_zeros(method):
    pytest.importorskip("onnx", reason="needs onnx, as ONNX Runtime's own quantising does")
    form = BlockFormat(4, 32, 1, symmetric=False, packed=True, method=method)
    weight = np.zeros((2, 64), np.float32)
    assert not dequantise(quantise(weight, form), form, weight.shape).any()


def test_k_quants_are_nearer_where_values_lie_to_one_side():
    pytest.importorskip("onnx", reason="needs onnx, as ONNX Runtime's own quantising does")
    weight = np.random.default_rng(0).gamma(2, size=(64, 64)).astype(np.float32) - 1
    errors = []
    for method in ("rtn", "k_quant"):
        form = BlockFormat(4, 32, 1, symmetric=False, packed=True, method=method)
        errors.append(np.linalg.norm(dequantise(quantise(weight, form), form, weight.shape) - weight))
    assert errors[1] < errors[0]


def spelled_out(weight, form):
    """Round blocks one operation of float32 after the other, and widen them."""
    rows = np.moveaxis(weight.astype(np.float32), form.axis, -1)
    lacking = [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % form.block_size)]
    blocks = np.pad(rows, lacking).reshape(*rows.shape[:-1], -1, form.block_size)
    low = np.minimum(blocks.min(axis=-1, keepdims=True), 0)
    high = np.maximum(blocks.max(axis=-1, keepdims=True), 0)
    half, most = 1 << (form.bits - 1), (1 << form.bits) - 1
    scale = np.maximum(high, -low) / np.float32(half - 1) if form.symmetric else (high - low) / np.float32(most)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    zero = np.zeros_like(low) if form.symmetric else np.rint(-low * inverse)
    numbers = np.rint(blocks * inverse) + zero
    if not form.symmetric:
        assert (numbers > most).any()
        numbers = np.clip(numbers, 0, most)
    wide = ((numbers - zero) * scale).reshape(*rows.shape[:-1], -1)[..., : rows.shape[-1]]
    return np.moveaxis(wide, -1, form.axis)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("bits", "block_size", "symmetric", "packed", "axis"),
    [
        (8, 256, False, True, 1), (8, 64, False, True, 0), (8, 20, False, False, 1), (8, 64, True, False, 0),
        (8, 300, True, True, 1), (4, 64, False, True, 1), (4, 64, False, False, 0), (4, 32, True, True, 0),
        (12, 300, True, False, 1),
    ],
)  # fmt: skip
def test_each_value_becomes_the_number_that_plain_arithmetic_gives(bits, block_size, symmetric, packed, axis, dtype):
    weight = np.random.default_rng(0).normal(0, 0.02, size=(500, 300))
    weight[:200] = np.rint(weight[:200] * 300) / 2  # Some are between two numbers.
    most = ((1 << bits) - 1) / 2
    weight[:2, :2] = [[most, -most], [-most, most]]  # Rounded up on both sides of 0: one more than there are numbers.
    weight[200:300, ::2] = -0.0
    weight = weight.astype(np.float32).astype(dtype)
    form = BlockFormat(bits, block_size, axis, symmetric, packed)
    parts = quantise(weight, form, np.dtype(np.float32))
    np.testing.assert_array_equal(dequantise(parts, form, weight.shape), spelled_out(weight, form))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_all_half_floats_are_widened_exactly(dtype):
    halves = np.arange(1 << 16).astype(np.uint16).view(dtype)
    for some in (halves, halves[:1000]):  # With infinities, and without.
        np.testing.assert_array_equal(widen(some, np.empty(some.shape, np.float32)), some.astype(np.float32))
