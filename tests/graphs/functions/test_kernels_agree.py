"""The stated meaning held against ONNX Runtime's CPU kernels."""

from __future__ import annotations

import numpy as np
import pytest
from one_node import assert_close, random, run_kernel, run_meaning

B, S, L, N, D = 2, 5, 7, 3, 4
H = N * D

MASK = np.random.default_rng(3).integers(0, 2, (B, S)).astype(np.int32)
CROSS_MASK = np.random.default_rng(4).integers(0, 2, (B, L)).astype(np.int32)
MASK_3D = np.random.default_rng(5).integers(0, 2, (B, S, S)).astype(np.int32)

PROJECTED = [random(B, S, 6), random(6, 3 * H), random(3 * H)]
SELF = [random(B, S, H, seed=seed) for seed in range(3)]
CROSS = [random(B, S, H), random(B, L, H), random(B, L, 6)]
NORMALIZED = [random(B, S, H), random(B, S, H, seed=1), random(H)]

CASES = {
    "Attention with biases": ("Attention", PROJECTED, {"num_heads": N}),
    "causal Attention": ("Attention", PROJECTED, {"num_heads": N, "unidirectional": 1}),
    "Attention with one head": ("Attention", PROJECTED, {"num_heads": 1}),
    "Attention with a mask of keys": ("Attention", [*PROJECTED, MASK], {"num_heads": N}),
    "Attention with a mask of pairs": ("Attention", [*PROJECTED, MASK_3D], {"num_heads": N}),
    "Attention with its own mask value": ("Attention", [*PROJECTED, MASK], {"num_heads": N, "mask_filter_value": -3.0}),
    "Attention with an additive bias and a scale": (
        "Attention",
        [*PROJECTED, None, None, random(B, N, S, S)],
        {"num_heads": N, "scale": 0.3},
    ),
    "Attention with a narrower value": (
        "Attention",
        [random(B, S, 6), random(6, 2 * H + 6), random(2 * H + 6)],
        {"num_heads": N, "qkv_hidden_sizes": [H, H, 6]},
    ),
    "MultiHeadAttention": ("MultiHeadAttention", SELF, {"num_heads": N}),
    "MultiHeadAttention with biases": ("MultiHeadAttention", [*SELF, random(3 * H)], {"num_heads": N}),
    "causal MultiHeadAttention": ("MultiHeadAttention", SELF, {"num_heads": N, "unidirectional": 1}),
    "cross attention with a scale": ("MultiHeadAttention", CROSS, {"num_heads": N, "scale": 0.7}),
    "cross attention with biases, mask and additive bias": (
        "MultiHeadAttention",
        [*CROSS, random(2 * H + 6), CROSS_MASK, random(1, N, S, L)],
        {"num_heads": N},
    ),
    "SkipLayerNormalization": ("SkipLayerNormalization", [*NORMALIZED, random(H, seed=1)], {}),
    "SkipLayerNormalization with bias and sum": (
        "SkipLayerNormalization",
        [*NORMALIZED, None, random(H, seed=2)],
        {"outputs": (True, False, False, True), "epsilon": 0.1},
    ),
    "SkipLayerNormalization with a broadcast skip": (
        "SkipLayerNormalization",
        [random(B, S, H), random(1, S, H), random(H), random(H, seed=1)],
        {"epsilon": 1e-5},
    ),
    "RotaryEmbedding of halves": (
        "RotaryEmbedding",
        [random(B, S, H), np.zeros(1, np.int64), random(S, D // 2, seed=1), random(S, D // 2, seed=2)],
        {"num_heads": N},
    ),
    "RotaryEmbedding by heads": (
        "RotaryEmbedding",
        [random(B, N, S, D), np.zeros(1, np.int64), random(S, D // 2, seed=1), random(S, D // 2, seed=2)],
        {"interleaved": 1},
    ),
    "RotaryEmbedding of neighbours, from another place": (
        "RotaryEmbedding",
        [random(B, S, H), np.array([2], np.int64), random(L, D // 2, seed=1), random(L, D // 2, seed=2)],
        {"num_heads": N, "interleaved": 1},
    ),
    "QuickGelu": ("QuickGelu", [random(B, S)], {}),
    "QuickGelu with its own alpha": ("QuickGelu", [random(B, S)], {"alpha": 1.3}),
    "BiasGelu": ("BiasGelu", [random(B, S, H), random(H)], {}),
    "FastGelu": ("FastGelu", [random(B, S, H)], {}),
    "FastGelu with a bias": ("FastGelu", [random(B, S, H), random(H)], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_agrees_with_the_stated_meaning(case):
    op_type, arrays, options = CASES[case]
    assert_close(run_meaning(op_type, arrays, **options), run_kernel(op_type, arrays, **options), 2e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_agrees_with_the_stated_meaning_in_half_precision(case):
    op_type, arrays, options = CASES[case]
    half = [a.astype(np.float16) if a is not None and a.dtype == np.float32 else a for a in arrays]
    assert_close(run_meaning(op_type, half, **options), run_kernel(op_type, half, **options), 2e-3)


@pytest.mark.parametrize("opset", [17, 20, 23])
def test_the_statements_hold_at_any_opset_from_17_on(opset):
    for op_type, arrays, options in (CASES["causal Attention"], CASES["SkipLayerNormalization"]):
        found = run_meaning(op_type, arrays, opset=opset, **options)
        assert_close(found, run_kernel(op_type, arrays, opset=opset, **options), 2e-6)
