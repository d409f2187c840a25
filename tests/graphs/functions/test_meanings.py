"""The meaning of operators without a CPU kernel held against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_node import assert_close, random, run_meaning
from torch.nn import functional as F  # noqa: N812

B, S, L, N, D = 2, 5, 7, 3, 4
H = N * D


def tensors(*arrays):
    return [torch.from_numpy(array).double() for array in arrays]


def like(array, result):
    return result.numpy().astype(array.dtype)


def attend(query, key, value, scale=None):
    """(B,S,N,D) each; → (B,S,N·D)."""
    heads = [part.transpose(1, 2) for part in (query, key, value)]
    return F.scaled_dot_product_attention(*heads, scale=scale).transpose(1, 2).flatten(2)


both = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float16, 2e-3)])


@both
def test_packed_qkv_holds_query_key_and_value_of_each_head_side_by_side(dtype, tolerance):
    packed = random(B, S, N, 3, D, dtype=dtype)
    wanted = attend(*tensors(packed)[0].unbind(3))
    assert_close(run_meaning("MultiHeadAttention", [packed], num_heads=N), [like(packed, wanted)], tolerance)


@both
def test_packed_kv_holds_key_and_value_of_each_head_side_by_side(dtype, tolerance):
    query, packed = random(B, S, H, dtype=dtype), random(B, L, N, 2, D, dtype=dtype)
    q, kv = tensors(query, packed)
    wanted = attend(q.unflatten(2, (N, D)), *kv.unbind(3), scale=0.4)
    found = run_meaning("MultiHeadAttention", [query, packed], num_heads=N, scale=0.4)
    assert_close(found, [like(query, wanted)], tolerance)


def test_bias_of_packed_qkv_is_added_to_query_key_and_value():
    packed, bias = random(B, S, N, 3, D), random(3 * H)
    x, b = tensors(packed, bias)
    parts = [p + b[i * H : (i + 1) * H].unflatten(0, (N, D)) for i, p in enumerate(x.unbind(3))]
    found = run_meaning("MultiHeadAttention", [packed, None, None, bias], num_heads=N)
    assert_close(found, [like(packed, attend(*parts))], 2e-6)


def test_attention_without_biases_projects_alone():
    # Here and not among the kernels: the CPU kernel of onnxruntime 1.31 crashes without biases.
    x, weight = random(B, S, 6), random(6, 3 * H)
    q, k, v = (part.unflatten(2, (N, D)) for part in (tensors(x)[0] @ tensors(weight)[0]).chunk(3, dim=-1))
    assert_close(run_meaning("Attention", [x, weight], num_heads=N), [like(x, attend(q, k, v))], 2e-6)


@both
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_group_norm_normalises_groups_in_either_layout(dtype, tolerance, activation, channels_last):
    x, gamma, beta = random(B, 3, 5, H, dtype=dtype), random(H), random(H, seed=1)
    image, scale, shift = tensors(x, gamma, beta)
    wanted = F.group_norm(image.permute(0, 3, 1, 2), 3, scale, shift, eps=1e-3)
    wanted = F.silu(wanted) if activation else wanted
    wanted = wanted.permute(0, 2, 3, 1) if channels_last else wanted
    given = x if channels_last else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    options = {"groups": 3, "epsilon": 1e-3, "activation": activation, "channels_last": channels_last}
    found = run_meaning("GroupNorm", [given, gamma, beta], **options)
    assert_close(found, [like(x, wanted)], tolerance)


@both
@pytest.mark.parametrize("shape", [(B, 3, 5, H), (B, 1, 1, H), (B, H)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_skip_group_norm_normalises_the_sum_and_returns_it(dtype, tolerance, shape, has_bias):
    x, skip = random(B, 3, 5, H, dtype=dtype), random(*shape, dtype=dtype, seed=7)
    gamma, beta, bias = random(H), random(H, seed=1), random(H, dtype=dtype, seed=2)
    image, added, scale, shift, offset = tensors(x, skip, gamma, beta, bias)
    total = image + (added[:, None, None] if added.ndim == 2 else added) + (offset if has_bias else 0)
    wanted = F.silu(F.group_norm(total.permute(0, 3, 1, 2), 3, scale, shift)).permute(0, 2, 3, 1)
    arrays = [x, gamma, beta, skip, *([bias] if has_bias else [])]
    found = run_meaning("SkipGroupNorm", arrays, outputs=(True, True), groups=3, activation=1)
    assert_close(found, [like(x, wanted), like(x, total)], tolerance)


def test_skip_layer_normalization_returns_mean_and_inverse_deviation():
    x, skip, gamma = random(B, S, H), random(B, S, H, seed=1), random(H)
    total, scale = tensors(x, gamma)[0] + tensors(skip)[0], tensors(gamma)[0]
    deviation = (total.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    mean = total.mean(-1, keepdim=True)
    wanted = [(total - mean) * deviation * scale, mean, deviation, total]
    found = run_meaning("SkipLayerNormalization", [x, skip, gamma], outputs=(True,) * 4, epsilon=1e-5)
    assert_close(found, [like(x, value) for value in wanted], 2e-6)


@both
def test_bias_split_gelu_multiplies_the_left_half_with_the_gelu_of_the_right(dtype, tolerance):
    x, bias = random(B, S, H, dtype=dtype), random(H, dtype=dtype, seed=1)
    left, right = (tensors(x)[0] + tensors(bias)[0]).chunk(2, dim=-1)
    assert_close(run_meaning("BiasSplitGelu", [x, bias]), [like(x, left * F.gelu(right))], tolerance)


@both
def test_bias_add_adds_bias_and_skip(dtype, tolerance):
    x, bias, skip = random(B, S, H, dtype=dtype), random(H, dtype=dtype), random(B, S, H, dtype=dtype, seed=1)
    assert_close(run_meaning("BiasAdd", [x, bias, skip]), [like(x, sum(tensors(x, bias, skip)))], tolerance)


@both
@pytest.mark.parametrize("groups", [1, 2])
def test_nhwc_conv_convolves_channels_last_images_with_channels_last_weights(dtype, tolerance, groups):
    x, weight = random(B, 6, 5, 8, dtype=dtype), random(4, 3, 3, 8 // groups, dtype=dtype)
    bias = random(4, dtype=dtype)
    image, kernel, offset = tensors(x, weight, bias)
    image, kernel = image.permute(0, 3, 1, 2), kernel.permute(0, 3, 1, 2)
    wanted = F.conv2d(image, kernel, offset, stride=2, padding=1, groups=groups).permute(0, 2, 3, 1)
    options = {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": groups}
    assert_close(run_meaning("NhwcConv", [x, weight, bias], **options), [like(x, wanted)], tolerance)
