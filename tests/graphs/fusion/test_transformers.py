"""Attention of transformers: heads behind (batch, sequence, heads, width), with RMS norms and rotary embeddings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from fusion_running import relative_error, run, session
from test_unusual import assert_equal_numbers, fused, graph

from olivelike.model.graph import parameter_inputs
from olivelike.model.targets import find_target
from olivelike.testing.models import load_model, traced_graph
from tests.families.test_qwen3 import QWEN
from tests.fixtures.little_transformers import little_transformer

TARGETS = ("cpu", "cuda", "directml", "openvino", "tensorrt", "webgpu")

ROTATIONS = {
    "by sequence": """
  qf = Reshape(qj, flat)
  kf = Reshape(kj, flat)
  qr = RotaryEmbedding<interleaved = {pairs}, num_heads = 2>(qf, ec, es)
  kr = RotaryEmbedding<interleaved = {pairs}, num_heads = 2>(kf, ec, es)
  qs = Reshape(qr, split)
  ks = Reshape(kr, split)
  qt = Transpose<perm = [0, 2, 1, 3]>(qs)
  kt = Transpose<perm = [0, 2, 1, 3]>(ks)""",
    "by heads": """
  qs = Transpose<perm = [0, 2, 1, 3]>(qj)
  ks = Transpose<perm = [0, 2, 1, 3]>(kj)
  qt = RotaryEmbedding<interleaved = {pairs}>(qs, ec, es)
  kt = RotaryEmbedding<interleaved = {pairs}>(ks, ec, es)""",
}
JOINT = """joint (float[B,3,16] x, float[B,4,16] t, float[7,4] c, float[7,4] s,
  float[16,16] w1, float[16,16] w2, float[16,16] w3, float[16,16] w4, float[8] wq, float[8] wk) => (float[B,7,16] y)
<int64[4] split = {{0, 0, 2, 8}}, int64[3] flat = {{0, 0, 16}}, int64[1] zero = {{0}}, int64[2] rest = {{1, 1}}> {{
  xq = MatMul(x, w1)
  tq = MatMul(t, w2)
  xk = MatMul(x, w3)
  tk = MatMul(t, w4)
  xqs = Reshape(xq, split)
  tqs = Reshape(tq, split)
  xks = Reshape(xk, split)
  tks = Reshape(tk, split)
  xqn = RMSNormalization<epsilon = 0.001>(xqs, wq)
  xkn = RMSNormalization(xks, wk)
  qj = Concat<axis = 1>(tqs, xqn)
  kj = Concat<axis = 1>(tks, xkn)
  vj = Concat<axis = 1>(tks, xks)
  batch = Shape<start = 0, end = 1>(x)
  wide = Concat<axis = 0>(batch, rest)
  ec = Expand(c, wide)
  es = Expand(s, wide)
  {rotations}
  vt = Transpose<perm = [0, 2, 1, 3]>(vj)
  a = Attention(qt, kt, vt)
  m = Transpose<perm = [0, 2, 1, 3]>(a)
  y = Reshape(m, flat)
}}"""


@pytest.mark.parametrize("pairs", [0, 1])
@pytest.mark.parametrize("spelling", ROTATIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_joint_attention_with_norms_and_rotary_embeddings(target, spelling, pairs):
    source = graph(JOINT.format(rotations=ROTATIONS[spelling].format(pairs=pairs)))
    result, facts = fused(source, find_target(target))
    assert_equal_numbers(source, result, B=2)
    counts = facts["operators_after"]
    whole = target in {"cpu", "cuda", "directml"}
    assert counts.get("com.microsoft.MultiHeadAttention", 0) == whole
    assert counts.get("RMSNormalization", 0) == (2 if target in {"cpu", "cuda", "openvino"} else 0)
    assert counts.get("RotaryEmbedding", 0) == (2 if target in {"cpu", "cuda", "openvino"} else 0)
    assert counts.get("com.microsoft.RotaryEmbedding", 0) == (2 if target in {"directml", "webgpu"} else 0)
    if whole:
        assert counts.get("Transpose", 0) == 0


GROUPED = """grouped (float[B,S,32] q, float[B,S,16] k, float[B,S,16] v{more}) => (float[B,S,32] y)
<int64[4] many = {{0, 0, 4, 8}}, int64[4] few = {{0, 0, 2, 8}}, int64[3] flat = {{0, 0, 32}}> {{
  qs = Reshape(q, many)
  ks = Reshape(k, few)
  vs = Reshape(v, few)
  qt = Transpose<perm = [0, 2, 1, 3]>(qs)
  kt = Transpose<perm = [0, 2, 1, 3]>(ks)
  vt = Transpose<perm = [0, 2, 1, 3]>(vs)
  a = Attention(qt, kt, vt{mask})
  m = Transpose<perm = [0, 2, 1, 3]>(a)
  y = Reshape(m, flat)
}}"""


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_heads_that_share_keys_and_values_have_them_each(target, mask):
    source = graph(GROUPED.format(more=", float[1,4,S,S] m0" if mask else "", mask=", m0" if mask else ""))
    result, facts = fused(source, find_target(target))
    assert_equal_numbers(source, result, B=2, S=5)
    whole = target in {"cpu", "cuda", "directml"}
    assert facts["operators_after"].get("com.microsoft.MultiHeadAttention", 0) == whole


@pytest.mark.parametrize("dims", ["B,1,1,S", "1,1,S,1"])
def test_a_mask_that_is_broadcast_is_left(dims):
    result, facts = fused(graph(GROUPED.format(more=f", float[{dims}] m0", mask=", m0")), find_target("cpu"))
    assert facts["left"]["attention"] == {"its mask is neither the causal one nor one for each query and key": 1}
    assert "com.microsoft.MultiHeadAttention" not in facts["operators_after"]
    assert result.digest


def test_queries_keys_and_values_are_not_packed_where_something_is_added_to_scores():
    """Packed forms would go without it."""
    text = """biased (float[B,S,16] x, float[1,2,S,S] m, float[16,16] w1, float[16,16] w2, float[16,16] w3)
      => (float[B,S,16] y) <int64[4] split = {0, 0, 2, 8}, int64[3] flat = {0, 0, 16}> {
      q = MatMul(x, w1)
      k = MatMul(x, w2)
      v = MatMul(x, w3)
      qs = Reshape(q, split)
      ks = Reshape(k, split)
      vs = Reshape(v, split)
      qt = Transpose<perm = [0, 2, 1, 3]>(qs)
      kt = Transpose<perm = [0, 2, 1, 3]>(ks)
      vt = Transpose<perm = [0, 2, 1, 3]>(vs)
      a = Attention<scale = 1.0>(qt, kt, vt, m)
      t = Transpose<perm = [0, 2, 1, 3]>(a)
      y = Reshape(t, flat)
    }"""
    source = graph(text)
    result, facts = fused(source, find_target("cuda"))
    assert facts["fused"]["attention"] == {"MultiHeadAttention": 1}
    assert "packed_qkv" not in facts["fused"]
    assert_equal_numbers(source, result, B=2, S=5)


def feeds_of(source, batch=2, tokens=9):
    """Random inputs and weights of a network, sizes of pictures no multiple of those that were traced."""
    random, model = np.random.default_rng(0), source.to_ir()
    weights = parameter_inputs(model.graph)
    values = {}
    for value in model.graph.inputs:
        sizes = [dim if isinstance(dim, int) else size_of(str(dim.value), batch, tokens) for dim in value.shape]
        if value.name in weights:
            values[value.name] = (random.standard_normal(sizes) * 0.3).astype(np.float32)
            values[value.name] += np.float32(value.name.endswith("norm.weight"))
        elif value.dtype.is_floating_point():
            values[value.name] = random.standard_normal(sizes).astype(np.float32)
        elif value.name == "attention_mask":
            values[value.name] = np.ones(sizes, np.int32)
            values[value.name][-1, tokens // 2 :] = 0
        else:
            values[value.name] = random.integers(0, 90, sizes).astype(value.dtype.numpy())
    return values


def size_of(name, batch, tokens):
    if "batch" in name:
        return 1 if "time" in name else batch
    return 10 if name.endswith(("height", "width")) else tokens


NETWORKS = {
    "sd3": lambda: load_model(little_transformer("sd3"), "transformer").architecture,
    "t5": lambda: load_model(little_transformer("sd3"), "text_encoder_3").architecture,
    "qwen3": lambda: QWEN,
    "flux2": lambda: load_model(little_transformer("flux2"), "transformer").architecture,
    "z_image": lambda: load_model(little_transformer("z_image"), "transformer").architecture,
    "qwen_image": lambda: load_model(little_transformer("qwen_image"), "transformer").architecture,
}
T5 = {
    "com.microsoft.MultiHeadAttention": 2, "RMSNormalization": 5, "Attention": 0,
    "com.microsoft.FastGelu": 2, "Tanh": 0, "Pow": 0, "MatMul": 14,
}  # fmt: skip
COUNTS = {
    ("sd3", "cpu"): {"com.microsoft.MultiHeadAttention": 4, "RMSNormalization": 14, "Attention": 0, "Transpose": 1},
    ("sd3", "directml"): {"com.microsoft.MultiHeadAttention": 4, "RMSNormalization": 0, "LayerNormalization": 26},
    ("t5", "cpu"): T5,
    ("t5", "cuda"): T5,
    ("t5", "directml"): {"com.microsoft.FastGelu": 2, "Tanh": 0, "Pow": 0},
    ("t5", "tensorrt"): {"Gelu": 2, "Tanh": 0, "Pow": 0},
    ("qwen3", "cpu"): {"com.microsoft.MultiHeadAttention": 3, "RMSNormalization": 12, "RotaryEmbedding": 6},
    ("qwen_image", "cpu"): {"com.microsoft.MultiHeadAttention": 2, "RotaryEmbedding": 8, "Attention": 0},
    ("qwen3", "webgpu"): {"com.microsoft.RotaryEmbedding": 6, "LayerNormalization": 12, "Softmax": 3, "Attention": 0},
}


def by_default(name, target):
    """Return whether a case is quick to look at: each network, each target, and each that has its operators counted."""
    return target == "cpu" or name == "z_image" or (name, target) in COUNTS


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=[pytest.mark.slow] * (not by_default(name, target)))
        for name in NETWORKS
        for target in TARGETS
    ],
)
def test_real_networks_compute_the_same(name, target):
    source = traced_graph(NETWORKS[name]())
    result, facts = fused(source, find_target(target))
    expected = COUNTS.get((name, target), {})
    assert {operator: facts["operators_after"].get(operator, 0) for operator in expected} == expected
    values = feeds_of(source)
    for one, other in zip(run(session(source), values), run(session(result), values), strict=True):
        assert relative_error(other, one) <= 1e-5


def test_masks_of_layers_are_added_as_one_value():
    result, _ = fused(traced_graph(QWEN), find_target("cpu"))
    nodes = [node for node in result.to_ir().graph if node.op_type == "MultiHeadAttention"]
    assert Counter(node.inputs[5].name for node in nodes) == {nodes[0].inputs[5].name: 3}


@pytest.mark.parametrize(("approximate", "operator"), [("none", "BiasGelu"), ("tanh", "FastGelu")])
def test_a_gelu_is_fused_as_the_network_has_it(approximate, operator):
    source = graph(f"""gelu (float[B,S,8] x, float[8,64] w, float[64] wb) => (float[B,S,64] y) {{
      h = MatMul(x, w)
      b = Add(h, wb)
      y = Gelu<approximate = "{approximate}">(b)
    }}""")
    result, facts = fused(source)
    assert facts["operators_after"] == {"MatMul": 1, f"com.microsoft.{operator}": 1}
    assert_equal_numbers(source, result, B=2, S=3)


SPELLED = """gelu (float[B,S,8] x, float[8,8] w) => (float[B,S,8] y)
  <float half = {{0.5}}, float three = {{3.0}},
   float c = {{{cubed}}}, float r = {{0.7978845608}}, float one = {{1.0}}> {{
  h = MatMul(x, w)
  cube = Pow(h, three)
  part = Mul(c, cube)
  total = Add(part, h)
  inner = Mul(total, r)
  t = Tanh(inner)
  shifted = Add(one, t)
  halved = Mul(h, half)
  y = Mul(shifted, halved)
}}"""


@pytest.mark.parametrize(("target", "operator"), [("cuda", "com.microsoft.FastGelu"), ("openvino", "Gelu")])
def test_a_gelu_that_is_spelled_out_with_tanh_is_one_operator(target, operator):
    source = graph(SPELLED.format(cubed=0.044715))
    result, facts = fused(source, find_target(target))
    assert facts["operators_after"] == {"MatMul": 1, operator: 1}
    assert_equal_numbers(source, result, B=2, S=3)


def test_another_function_with_tanh_is_left():
    _, facts = fused(graph(SPELLED.format(cubed=0.05)), find_target("cuda"))
    assert facts["operators_after"]["Tanh"] == 1
