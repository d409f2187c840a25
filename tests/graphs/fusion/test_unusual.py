"""What does not fit is left as it is, with a reason; and what only looks different is fused all the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fusion_running import any_width, relative_error, run, session

from olivelike.errors import PassError, UsageError
from olivelike.graphs.fusion import fuse, rules
from olivelike.graphs.fusion.rule import Rule
from olivelike.model import Graph
from olivelike.model.graph import PARAMETER_KEY
from olivelike.model.targets import TARGETS, find_target

CUDA = find_target("cuda")


def graph(text: str, opset: int = 23) -> Graph:
    """Parse a graph; inputs whose names start with `w` are parameters."""
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["" : {opset}]> {text}')
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    model = ir.from_proto(model)
    for value in model.graph.inputs:
        if value.name.startswith("w"):
            value.metadata_props[PARAMETER_KEY] = value.name
    return Graph.from_ir(model)


def fused(source: Graph, target=CUDA, **options):
    model = source.to_ir()
    facts = fuse(model, target, **options)
    return Graph.from_ir(model), facts


def operators(result: Graph) -> list[str]:
    return [node.op_type for node in result.to_ir().graph]


def assert_equal_numbers(before: Graph, after: Graph, **sizes: int):
    random = np.random.default_rng(0)
    feeds = {}
    for value in before.to_ir().graph.inputs:
        shape = [dim if isinstance(dim, int) else sizes[dim.value] for dim in value.shape]
        feeds[value.name] = random.standard_normal(shape).astype(np.float32)
    for one, other in zip(run(session(before), feeds), run(session(after), feeds), strict=True):
        assert relative_error(other, one) < 1e-5


GEGLU = """geglu (float[B,S,8] x, float[8,{width}] w, float[{width}] wb) => (float[B,S,{half}] y) {{
  h = MatMul(x, w)
  b = Add(h, wb)
  l, r = Split<axis = {axis}, num_outputs = 2>(b)
  g = {gelu}(r)
  y = Mul(l, g)
}}"""


def geglu(width=2560, axis=2, gelu="Gelu"):
    return graph(GEGLU.format(width=width, half=width // 2, axis=axis, gelu=gelu))


@pytest.mark.parametrize("width", [2560, 5120, 6144, 10240, 12288])
def test_geglu_of_a_width_that_cuda_runs_becomes_one_operator(width):
    source = geglu(width, axis=-1)
    result, _ = fused(source)
    assert operators(result) == ["MatMul", "BiasSplitGelu"]
    assert_equal_numbers(source, result, B=2, S=3)


def test_geglu_of_another_width_is_left():
    result, facts = fused(geglu(2568))
    assert "BiasSplitGelu" not in operators(result)
    assert list(facts["left"]["bias_split_gelu"]) == [
        "cuda runs BiasSplitGelu for widths 2560, 5120, 6144, 10240, 12288 only, not 2568"
    ]


@pytest.mark.parametrize("gelu", ['Gelu<approximate = "tanh">', "Sigmoid", "Erf"])
def test_another_gate_is_left(gelu):
    result, _ = fused(geglu(gelu=gelu))
    assert "BiasSplitGelu" not in operators(result)


RESIDUAL = """residual (float[B,S,8] x, float[B,S,{width}] s, float[8,{width}] w, float[{width}] wb)
  => (float[B,S,{width}] y) {{ h = MatMul(x, w) b = Add({first}) y = Add(b, s) }}"""


@pytest.mark.parametrize("first", ["h, wb", "wb, h"])
def test_bias_and_residual_become_one_addition(first):
    source = graph(RESIDUAL.format(width=320, first=first))
    result, _ = fused(source)
    assert operators(result) == ["MatMul", "BiasAdd"]
    assert_equal_numbers(source, result, B=2, S=3)


NORM = """norm (float[N,{channels},H,W] x, float[{channels}] w, float[{channels}] wb)
  => (float[N,{channels},H,W] y) {{ y = GroupNormalization<num_groups = {groups}>(x, w, wb) }}"""


@pytest.mark.parametrize(
    ("channels", "groups", "reason"),
    [(24, 8, "its groups have an odd number of channels: 3"), (8, 8, "its groups have an odd number of channels: 1")],
)
def test_groups_of_an_odd_size_are_left(channels, groups, reason):
    result, facts = fused(graph(NORM.format(channels=channels, groups=groups)))
    assert operators(result) == ["GroupNormalization"]
    assert facts["left"]["group_norm"] == {reason: 1}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_group_norm_means_the_same_on_every_target(target):
    source = graph(NORM.format(channels=32, groups=8))
    result, _ = fused(source, find_target(target))
    assert_equal_numbers(source, result, N=2, H=3, W=5)


def test_group_norm_is_written_in_nchw_where_the_target_has_no_nhwc():
    kernels = dict(CUDA.kernels)
    kernels["GroupNorm"] = dataclasses.replace(kernels["GroupNorm"], layouts=frozenset({"NCHW"}))
    source = graph(NORM.format(channels=32, groups=8))
    result, _ = fused(source, dataclasses.replace(CUDA, kernels=kernels))
    assert operators(result) == ["GroupNorm"]
    assert_equal_numbers(source, result, N=2, H=3, W=5)


def test_another_activation_behind_group_norm_stays_behind_it():
    source = graph("""act (float[N,16,H,W] x, float[16] w, float[16] wb) => (float[N,16,H,W] y)
      <float[N,16,H,W] n> {
      n = GroupNormalization<num_groups = 4>(x, w, wb)
      s = HardSigmoid(n)
      y = Mul(n, s)
    }""")
    result, facts = fused(source)
    assert "GroupNorm" in operators(result)
    assert "HardSigmoid" in operators(result)
    assert "group_norm_silu" not in facts["fused"]
    assert_equal_numbers(source, result, N=2, H=3, W=5)


@pytest.mark.parametrize("skip", ["float[1,16,H,W]", "float[N,1,H,W]", "float[N,16,H,1]"])
def test_a_broadcast_sum_in_front_of_group_norm_is_left(skip):
    source = graph(f"""sum (float[N,16,H,W] x, {skip} s, float[16] w, float[16] wb) => (float[N,16,H,W] y) {{
      a = Add(x, s)
      y = GroupNormalization<num_groups = 4>(a, w, wb)
    }}""")
    result, facts = fused(source)
    assert "SkipGroupNorm" not in operators(result)
    assert sum(facts["left"]["skip_group_norm"].values()) == 1
    assert_equal_numbers(source, result, N=2, H=3, W=5)


def test_a_grouped_convolution_is_left():
    source = graph("""conv (float[N,8,H,W] x, float[8,2,3,3] w) => (float[N,8,H2,W2] y) {
      y = Conv<group = 4>(x, w)
    }""")
    result, facts = fused(source)
    assert operators(result) == ["Conv"]
    assert facts["left"]["nhwc_conv"] == {"the convolution is grouped": 1}


def test_a_convolution_with_computed_weights_is_left():
    source = graph("""conv (float[N,8,H,W] x, float[8,8,3,3] k) => (float[N,8,H2,W2] y) { y = Conv(x, k) }""")
    assert operators(fused(source)[0]) == ["Conv"]


ATTENTION = """attention (float[B,S,{width}] q, float[B,L,{width}] k, float[B,L,{width}] v {more})
  => (float[B,S,{width}] y) <int64[4] heads = {{0, 0, {count}, {size}}}, int64[3] flat = {{0, 0, {width}}}> {{
  q4 = Reshape(q, heads)  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
  k4 = Reshape(k, heads)  kt = Transpose<perm = [0, 2, 1, 3]>(k4)
  v4 = Reshape(v, heads)  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  {mask}
  a = Attention{attributes}
  at = Transpose<perm = [0, 2, 1, 3]>(a)
  y = Reshape(at, flat)
}}"""


def attention(count=2, size=8, more="", mask="", attributes="(qt, kt, vt)"):
    text = ATTENTION.format(width=count * size, count=count, size=size, more=more, mask=mask, attributes=attributes)
    return graph(text)


@pytest.mark.parametrize("size", [1, 5, 8, 40])
@pytest.mark.parametrize("target", ["cuda", "directml", "tensorrt"])
def test_attention_of_any_head_size_means_the_same(target, size):
    source = attention(size=size, attributes="<scale = 0.3>(qt, kt, vt)")
    result, _ = fused(source, find_target(target))
    assert_equal_numbers(source, result, B=2, S=3, L=5)


def test_attention_on_three_axes_is_the_same_operator():
    source = graph("""attention (float[B,S,16] q, float[B,L,16] k, float[B,L,16] v) => (float[B,S,16] y) {
      y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)
    }""")
    result, _ = fused(source)
    assert operators(result) == ["MultiHeadAttention"]
    assert_equal_numbers(source, result, B=2, S=3, L=5)


@pytest.mark.parametrize(
    ("more", "attributes", "reason"),
    [
        ("", "<softcap = 2.0>(qt, kt, vt)", "its scores are soft-capped"),
        (", float[S,L] m", "(qt, kt, vt, m)", "its mask is neither the causal one nor one for each query and key"),
        ("", "<is_causal = 1>(qt, kt, vt)", "its mask is neither the causal one nor one for each query and key"),
    ],
)
def test_attention_that_the_fused_operator_does_not_cover_is_left(more, attributes, reason):
    result, facts = fused(attention(more=more, attributes=attributes))
    assert "MultiHeadAttention" not in operators(result)
    assert facts["left"]["attention"] == {reason: 1}


CAUSAL = """causal (float[B,S,16] q) => (float[B,S,16] y)
  <int64 zero = {{0}}, int64 one = {{1}}, int64[2] ends = {{0, 1}}, int64[1] last = {{2}}, float allowed = {{0}},
   float forbidden = {{-10000}}, int64[1] first = {{1}}, bool[1] yes = {{1}}> {{
  size = Shape<start = 1, end = 2>(q)
  length = Squeeze(size)
  range = Range(zero, length, one)
  row = Unsqueeze(range, zero)
  column = Unsqueeze(range, first)
  {mask}
  y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, q, q, m)
}}"""
MASKS = {
    "LessOrEqual": "m = LessOrEqual(row, column)",
    "Not Greater": "g = Greater(row, column) m = Not(g)",
    "float": "g = Greater(row, column) m = Where(g, forbidden, allowed)",
    "Trilu": "both = Concat<axis = 0>(size, size) all = Expand(yes, both) i = Cast<to = 7>(all) "
    "t = Trilu<upper = 0>(i) m = Cast<to = 9>(t)",
}


@pytest.mark.parametrize("spelling", MASKS)
def test_a_causal_mask_is_known_however_it_is_spelled(spelling):
    source = graph(CAUSAL.format(mask=MASKS[spelling]))
    result, facts = fused(source)
    assert operators(result) == ["MultiHeadAttention"], facts["left"]
    assert_equal_numbers(source, result, B=2, S=6)


@pytest.mark.parametrize(
    "mask",
    [
        "m = GreaterOrEqual(row, column)",
        "m = Equal(row, column)",
        "d = Sub(column, row) f = Cast<to = 1>(d) g = Greater(row, column) m = Where(g, forbidden, f)",
    ],
)
def test_a_mask_that_is_nearly_causal_is_left(mask):
    source = graph(CAUSAL.format(mask=mask))
    result, facts = fused(source)
    assert "MultiHeadAttention" not in operators(result)
    assert facts["left"]["attention"] == {"its mask is neither the causal one nor one for each query and key": 1}


def test_packed_attention_needs_heads_of_a_multiple_of_eight():
    source = graph("""packed (float[B,S,20] x, float[20,20] wq, float[20,20] wk, float[20,20] wv)
      => (float[B,S,20] y) {
      q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
      y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)
    }""")
    result, facts = fused(source)
    assert operators(result) == ["MatMul", "MatMul", "MatMul", "MultiHeadAttention"]
    assert facts["left"]["packed_qkv"] == {"its head size is no multiple of 8": 1}
    assert_equal_numbers(source, result, B=2, S=3)


@pytest.mark.parametrize("skip", ["float[S,320]", "float[1,S,320]", "float[B,1,320]"])
def test_a_broadcast_sum_in_front_of_layer_norm_is_left(skip):
    source = graph(f"""sum (float[B,S,320] x, {skip} s, float[320] w, float[320] wb) => (float[B,S,320] y) {{
      a = Add(x, s)
      y = LayerNormalization<axis = -1>(a, w, wb)
    }}""")
    result, facts = fused(source)
    assert operators(result) == ["Add", "LayerNormalization"]
    assert sum(facts["left"]["skip_layer_norm"].values()) == 1


def test_a_sum_that_is_also_an_output_keeps_its_name():
    source = graph("""sum (float[B,S,32] x, float[B,S,32] s, float[32] w) => (float[B,S,32] y, float[B,S,32] a) {
      a = Add(x, s)
      y = LayerNormalization<axis = -1>(a, w)
    }""")
    result, _ = fused(source)
    assert operators(result) == ["SkipLayerNormalization"]
    assert [value.name for value in result.to_ir().graph.outputs] == ["y", "a"]
    assert_equal_numbers(source, result, B=2, S=3)


def test_a_graph_with_nothing_to_fuse_passes_through_unchanged():
    source = graph("plain (float[N,4] x, float[4,4] w) => (float[N,4] y) { h = MatMul(x, w) y = Relu(h) }", opset=20)
    model = source.to_ir()
    model.ir_version = 10
    source = Graph.from_ir(model)
    result, facts = fused(source)
    assert result.data == source.data
    assert facts["fused"] == {}
    assert facts["left"] == {}


def test_the_model_is_stamped_with_the_oldest_versions_that_have_its_operators():
    plain = "plain (float[N,4] x) => (float[4,N] y) { y = Transpose(x) }"
    model = fused(graph(plain))[0].to_ir()
    assert (model.opset_imports[""], model.ir_version) == (20, 10)
    model = fused(graph(NORM.format(channels=24, groups=8)))[0].to_ir()
    assert (model.opset_imports[""], model.ir_version) == (21, 10)
    switches = {"attention": False}
    model = fused(attention(), switches=switches)[0].to_ir()
    assert (model.opset_imports[""], model.ir_version) == (23, 11)


def test_what_a_target_can_not_read_is_an_error_that_names_the_operator():
    source = attention(attributes="<softcap = 2.0>(qt, kt, vt)")
    old = dataclasses.replace(find_target("tensorrt"), opset=21)
    with pytest.raises(PassError, match="tensorrt reads opset 21, but Attention needs 23"):
        fused(source, old)


def _wrong_shape(scope):
    """Relu → Relu of another shape."""
    (node,) = scope.editor.nodes("Relu")
    wrong = scope.editor.add("Relu", [node.inputs[0]], ("N", 5), before=node, name="wrong")
    scope.editor.replace(node.outputs[0], wrong)
    scope.fused["Relu"] += 1


def _stumbling(scope):
    """Finds nothing that it can go on with."""
    raise KeyError("N")


@pytest.mark.parametrize("later", [(), (Rule(_stumbling),)])
def test_a_rule_that_leaves_a_wrong_graph_stops_the_pass_with_its_name(monkeypatch, later):
    monkeypatch.setattr(rules, "RULES", (Rule(_wrong_shape), *later))
    source = graph("plain (float[N,4] x) => (float[N,4] y) { h = Relu(x) y = Sigmoid(h) }")
    with pytest.raises(PassError, match="rule _wrong_shape left a graph that is not valid"):
        fused(source)


def test_an_unknown_rule_is_named_with_those_there_are():
    with pytest.raises(UsageError, match="no rule packed_vq; there are attention,"):
        fused(attention(), switches={"packed_vq": False})


def test_every_rule_says_what_it_matches_and_writes():
    for rule in rules.RULES:
        assert "→" in rule.matches


def test_images_and_tokens_meet_without_transposes():
    source = graph("""vae (float[N,16,H,W] x, float[16,16,1,1] w, float[16,16] w2, float[16,16,1,1] w3)
      => (float[N,16,H,W] y) <int64[3] flat = {0, 16, -1}> {
      c = Conv(x, w)
      f = Reshape(c, flat)
      t = Transpose<perm = [0, 2, 1]>(f)
      m = MatMul(t, w2)
      b = Transpose<perm = [0, 2, 1]>(m)
      s = Shape(x)
      i = Reshape(b, s)
      y = Conv(i, w3)
    }""")
    result, _ = fused(source, any_width("cuda"))
    assert operators(result).count("NhwcConv") == 2
    assert_equal_numbers(source, result, N=2, H=3, W=5)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axis", [-1, 0])
def test_places_of_largest_whole_numbers_stay_on_cuda(axis: int, keep: int) -> None:
    shape = ["N" if axis else "M", "N" if not axis else "M"]
    kept = [f"{size}" if place != axis % 2 else "1" for place, size in enumerate(shape) if keep or place != axis % 2]
    before = graph(
        f"places (int64[{','.join(shape)}] ids) => (int64[{','.join(kept)}] y) {{"
        f" i = Cast<to = 6>(ids) y = ArgMax<axis = {axis}, keepdims = {keep}>(i) }}"
    )
    after, facts = fused(before)
    assert facts["fused"]["lower"] == {"ArgMax lowered": 1}
    assert "ArgMax" not in operators(after)
    ids = np.random.default_rng(0).integers(-3, 3, (5, 77))
    assert (run(session(after), {"ids": ids})[0] == run(session(before), {"ids": ids})[0]).all()
