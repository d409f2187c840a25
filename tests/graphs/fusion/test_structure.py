"""What fusion writes on small networks: operators, layouts, names, types, versions; and that it does so repeatably."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import onnx
import pytest
from fusion_running import any_width

from olivelike.graphs.fusion import fuse
from olivelike.model import Graph
from olivelike.model.graph import BLOCK_KEY, real_inputs, weight_values
from olivelike.model.targets import find_target
from tests.fixtures.fusion_networks import ARCHITECTURES

CONTRIB = "com.microsoft"

EXPECTED_ON_CUDA = {
    "unet": {
        "LayerNormalization": 2,
        "Transpose": 2,
        "com.microsoft.BiasAdd": 2,
        "com.microsoft.BiasSplitGelu": 2,
        "com.microsoft.GroupNorm": 3,
        "com.microsoft.MultiHeadAttention": 4,
        "com.microsoft.NhwcConv": 18,
        "com.microsoft.SkipGroupNorm": 10,
        "com.microsoft.SkipLayerNormalization": 4,
    },
    "text_encoder": {
        "LayerNormalization": 1,
        "com.microsoft.Attention": 2,
        "com.microsoft.QuickGelu": 2,
        "com.microsoft.SkipLayerNormalization": 4,
    },
    "text_encoder_2": {
        "LayerNormalization": 1,
        "com.microsoft.Attention": 2,
        "com.microsoft.BiasGelu": 2,
        "com.microsoft.SkipLayerNormalization": 4,
    },
    "safety_checker": {
        "Transpose": 1,
        "com.microsoft.Attention": 2,
        "com.microsoft.NhwcConv": 1,
        "com.microsoft.QuickGelu": 2,
        "com.microsoft.SkipLayerNormalization": 3,
    },
}


@pytest.mark.parametrize("name", EXPECTED_ON_CUDA)
def test_operator_counts_of_small_networks_are_exact(name, network):
    facts = fuse(network(name).graph.to_ir(), any_width("cuda"))
    counts = facts["operators_after"]
    assert {operator: counts.get(operator, 0) for operator in EXPECTED_ON_CUDA[name]} == EXPECTED_ON_CUDA[name]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_group_norm_and_no_attention_is_left_unfused_on_cuda(name, network):
    facts = fuse(network(name).graph.to_ir(), any_width("cuda"))
    assert not {"GroupNormalization", "Attention", "Softmax", "Conv"} & facts["operators_after"].keys()
    assert set(facts["left"]) <= {"skip_layer_norm"}


@pytest.mark.parametrize("name", ["unet", "safety_checker"])
def test_layers_of_two_dimensions_are_matmul_and_add_where_gemm_is_avoided(name, network):
    graph = network(name).graph
    gemms = [node for node in graph.to_ir().graph if node.op_type == "Gemm"]
    fused = graph.to_ir()
    facts = fuse(fused, find_target("openvino"))
    assert gemms
    assert facts["fused"]["lower"] == {"Gemm lowered": len(gemms)}
    assert "Gemm" not in facts["operators_after"]
    written = fuse(graph.to_ir(), find_target("openvino").without_avoiding(["Gemm"]))
    more = sum(len(node.inputs) == 3 for node in gemms)
    assert facts["nodes_after"] == written["nodes_after"] + more


def test_small_widths_are_left_to_standard_operators_on_cuda_with_a_reason(network):
    facts = fuse(network("unet").graph.to_ir(), find_target("cuda"))
    assert "com.microsoft.BiasSplitGelu" not in facts["operators_after"]
    assert facts["left"]["bias_split_gelu"] == {
        "cuda runs BiasSplitGelu for widths 2560, 5120, 6144, 10240, 12288 only, not 128": 2
    }


def test_self_attention_is_packed_in_half_precision_only(network):
    half = fuse(network("unet").graph.to_ir(), any_width("cuda"))
    single = fuse(network("unet").graph.to_ir(), any_width("cuda"), precision="fp32")
    assert half["fused"]["packed_qkv"] == {"MultiHeadAttention, packed QKV": 2}
    assert half["fused"]["packed_kv"] == {"MultiHeadAttention, packed KV": 2}
    assert "packed_qkv" not in single["fused"]
    assert single["left"]["packed_qkv"] == {"packed MultiHeadAttention is for fp16 only": 2}


def test_text_encoder_attention_is_causal_and_needs_no_mask(network):
    model = network("text_encoder").graph.to_ir()
    fuse(model, find_target("cuda"))
    attentions = [node for node in model.graph if node.op_type == "Attention"]
    assert {node.domain for node in attentions} == {CONTRIB}
    assert all(node.attributes["unidirectional"].as_int() == 1 for node in attentions)
    assert all(len(node.inputs) == 3 for node in attentions)
    assert not {"LessOrEqual", "Expand", "Where"} & {node.op_type for node in model.graph}


def interface(model):
    values = (*real_inputs(model.graph), *model.graph.outputs)
    return [(value.name, value.dtype, str(value.shape)) for value in values]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_inputs_outputs_types_shapes_and_blocks_survive(name, network):
    before = network(name).graph.to_ir()
    model = network(name).graph.to_ir()
    fuse(model, any_width("cuda"))
    after = Graph.from_ir(model).to_ir()
    assert interface(before) == interface(after)
    for node in after.graph:
        assert all(value.dtype is not None and value.shape is not None for value in node.outputs if value.name)
    fused = [node for node in after.graph if node.domain == CONTRIB]
    assert all(node.metadata_props.get(BLOCK_KEY) for node in fused)
    onnx.checker.check_model(Graph.from_ir(after).data, full_check=True)


def test_combined_weights_are_nodes_over_the_weight_inputs(network):
    model = network("unet").graph.to_ir()
    parameters = {value.name for value in model.graph.inputs}
    fuse(model, any_width("cuda"))
    assert {value.name for value in model.graph.inputs} == parameters
    weights = weight_values(model.graph)
    for node in model.graph:
        if node.op_type == "NhwcConv":
            assert node.inputs[1] in weights
        if node.op_type == "MultiHeadAttention":
            product = node.inputs[-1].producer().inputs[0].producer()
            assert product.op_type == "MatMul"
            assert product.inputs[1] in weights


def test_nodes_stay_in_an_order_in_which_they_can_run(network):
    for name in ARCHITECTURES:
        model = network(name).graph.to_ir()
        fuse(model, any_width("cuda"))
        known = {*model.graph.inputs, *model.graph.initializers.values()}
        for node in model.graph:
            assert all(value is None or value in known for value in node.inputs)
            known.update(node.outputs)


def test_a_second_fusion_changes_nothing(network):
    model = network("sdxl_unet").graph.to_ir()
    fuse(model, any_width("cuda"))
    once = Graph.from_ir(model)
    again = once.to_ir()
    facts = fuse(again, any_width("cuda"))
    assert facts["fused"] == {}
    assert Graph.from_ir(again).data == once.data


_FUSE = """
import sys, hashlib, pathlib
from olivelike.graphs.fusion import fuse
from olivelike.model import Graph
from olivelike.model.targets import find_target
model = Graph(pathlib.Path(sys.argv[1]).read_bytes()).to_ir()
fuse(model, find_target("cuda"))
print(hashlib.sha256(Graph.from_ir(model).data).hexdigest())
"""


def test_equal_graphs_give_equal_bytes_in_any_process(network, tmp_path):
    file = tmp_path / "graph.onnx"
    file.write_bytes(network("vae_decoder").graph.data)
    model = network("vae_decoder").graph.to_ir()
    fuse(model, find_target("cuda"))
    here = hashlib.sha256(Graph.from_ir(model).data).hexdigest()
    done = subprocess.run(
        [sys.executable, "-c", _FUSE, str(file)],
        env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == here  # where sets of names have another order
