"""Weights in 8 bits per channel, and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from olivelike.model.quantised_values import ChannelFormat


@pytest.mark.parametrize(
    ("form", "dtype", "limit"),
    [
        (ChannelFormat("int8", 0), np.int8, 1e-2),
        (ChannelFormat("int8", 1), np.int8, 1e-2),
        (ChannelFormat("fp8", None), ml_dtypes.float8_e4m3fn, 4e-2),
    ],
)
@pytest.mark.parametrize("weight_type", [np.float32, np.float16])
def test_a_weight_comes_back_as_near_as_its_type_allows(form, dtype, limit, weight_type):
    weight = (np.random.default_rng(0).standard_normal((24, 40, 3, 3)) * 0.03).astype(weight_type)
    if form.axis == 0:
        weight[3] *= 20
    weight[:, 7] = 0
    numbers, scales = parts = form.quantise(weight)
    assert (numbers.dtype, numbers.shape, scales.dtype) == (dtype, weight.shape, weight_type)
    assert scales.shape == form.scale_shape(weight.shape)
    back = form.dequantise(parts, weight.shape)
    assert np.linalg.norm(back - weight) < limit * np.linalg.norm(weight.astype(np.float32))
    assert not back[:, 7].any()
    assert ChannelFormat.of(form.attributes()) == form


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_channels_too_small_for_a_half_precision_scale_become_zero(kind):
    weight = np.ones((3, 4), np.float16)
    weight[1] = 1e-7
    numbers, scales = parts = ChannelFormat(kind, 0).quantise(weight)
    assert scales.all()
    assert not numbers[1].astype(np.float32).any()
    np.testing.assert_allclose(ChannelFormat(kind, 0).dequantise(parts, weight.shape)[[0, 2]], 1, rtol=1e-3)
