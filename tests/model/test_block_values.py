"""Weights in 12, 8 and 4 bits as values."""

from __future__ import annotations

import numpy as np
import pytest

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
