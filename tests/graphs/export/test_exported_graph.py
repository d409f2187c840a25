"""The graphs of the tiny SD 1.5 components: what clients and later passes rely on."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnxscript.rewriter.rules import common as rules

from olivelike.errors import PassError
from olivelike.families.networks import interface_of
from olivelike.graphs.export.exporter import simplify
from olivelike.measure.network_sizes import Case, random_inputs
from olivelike.measure.verify.original import relative_error, run_torch
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY
from olivelike.testing.parity import torch_network

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")
FLOAT, INT32, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.BOOL

INPUTS = {
    "text_encoder": [("input_ids", INT32, ["text_batch", "text_sequence"])],
    "unet": [
        ("sample", FLOAT, ["unet_sample_batch", 4, "unet_sample_height", "unet_sample_width"]),
        ("timestep", FLOAT, ["unet_time_batch"]),
        ("encoder_hidden_states", FLOAT, ["unet_hidden_batch", "unet_hidden_sequence", 32]),
    ],
    "vae_encoder": [("sample", FLOAT, ["encoder_batch", 3, "encoder_height", "encoder_width"])],
    "vae_decoder": [("latent_sample", FLOAT, ["decoder_batch", 4, "decoder_height", "decoder_width"])],
    "safety_checker": [
        ("clip_input", FLOAT, ["clip_batch", 3, 56, 56]),
        ("images", FLOAT, ["image_batch", "image_height", "image_width", 3]),
    ],
}
OUTPUTS = {
    "text_encoder": [("last_hidden_state", FLOAT), ("pooler_output", FLOAT)]
    + [(f"hidden_states.{index}", FLOAT) for index in range(4)],
    "unet": [("out_sample", FLOAT)],
    "vae_encoder": [("latent_sample", FLOAT), ("latent_parameters", FLOAT)],
    "vae_decoder": [("sample", FLOAT)],
    "safety_checker": [("out_images", FLOAT), ("has_nsfw_concepts", BOOL)],
}
# What `fuse` matches, and what the exporter must keep whole.
COUNTS = {
    "text_encoder": {"Attention": 3, "LayerNormalization": 7, "Sigmoid": 3, "MatMul": 18},
    "unet": {
        "Attention": 32, "GroupNormalization": 61, "LayerNormalization": 48, "Gelu": 16,
        "Sigmoid": 47, "Conv": 98, "Resize": 3, "Sin": 1, "Cos": 1,
    },
    "vae_encoder": {"Attention": 1, "GroupNormalization": 22, "Sigmoid": 21, "Conv": 28},
    "vae_decoder": {"Attention": 1, "GroupNormalization": 30, "Sigmoid": 29, "Conv": 36, "Resize": 3},
    "safety_checker": {"Attention": 3, "LayerNormalization": 8, "Sigmoid": 3, "Conv": 1, "Gemm": 1},
}  # fmt: skip
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}


@pytest.fixture(params=COMPONENTS)
def model(request, tiny):
    """One component after another."""
    return tiny(request.param)


@pytest.fixture
def proto(model):
    """Its graph as protobuf."""
    return onnx.load_model_from_string(model.graph.data)


def interface_part(value):
    tensor = value.type.tensor_type
    return value.name, tensor.elem_type, [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]


def test_inputs_have_the_names_types_and_dimensions_that_clients_know(model, proto):
    inputs = [value for value in proto.graph.input if not value.metadata_props]
    assert [interface_part(value) for value in inputs] == INPUTS[model.component]
    assert list(proto.graph.input[: len(inputs)]) == inputs


def test_outputs_have_the_names_types_and_order_that_clients_know(model, proto):
    assert [interface_part(value)[:2] for value in proto.graph.output] == OUTPUTS[model.component]


def test_the_graph_is_valid_onnx(proto):
    onnx.checker.check_model(proto, full_check=True)
    assert [(imported.domain, imported.version) for imported in proto.opset_import] == [("", 23)]
    assert proto.ir_version == 11


def test_the_graph_is_weightless(model, proto):
    assert sum(len(tensor.raw_data) for tensor in proto.graph.initializer) < 1024
    assert len(model.graph.data) < 1_000_000


def test_parameters_go_by_the_names_and_shapes_of_the_library(model, proto):
    marked = {value.metadata_props[0].value: value for value in proto.graph.input if value.metadata_props}
    assert {value.metadata_props[0].key for value in marked.values()} == {PARAMETER_KEY}
    assert list(marked) == sorted(marked)
    for name, value in marked.items():
        assert interface_part(value) == (name, FLOAT, list(model.weights[name].shape))


def test_every_parameter_of_the_component_is_there_and_none_of_the_other_half_of_the_vae(model, proto):
    marked = {value.metadata_props[0].value for value in proto.graph.input if value.metadata_props}
    prefixes = {"vae_encoder": ("encoder.", "quant_conv."), "vae_decoder": ("decoder.", "post_quant_conv.")}
    assert marked == {name for name in model.weights if name.startswith(prefixes.get(model.component, ""))}


def test_high_level_operators_survive(model, proto):
    found = Counter(node.op_type for node in proto.graph.node)
    assert {name: found[name] for name in COUNTS[model.component]} == COUNTS[model.component]


def test_nothing_in_the_graph_is_random(proto):
    assert not RANDOM & {node.op_type for node in proto.graph.node}


def test_nothing_in_the_file_tells_where_or_when_it_was_made(model):
    assert not re.search(rb"\.py\b|site-packages|/home/|/tmp/|\\Users\\|0x[0-9a-f]{6}", model.graph.data)
    assert str(Path(__file__).parents[3]).encode() not in model.graph.data


def test_blocks_are_modules_of_the_network(model, proto):
    from olivelike.graphs.export.torch_network import build_network

    modules = {name for name, _ in build_network(model.architecture).named_modules()}
    blocks = [{prop.key: prop.value for prop in node.metadata_props} for node in proto.graph.node]
    assert all(props.keys() <= {BLOCK_KEY} for props in blocks)
    assert {props[BLOCK_KEY] for props in blocks if props} <= modules
    assert sum(not props for props in blocks) < len(blocks) / 4


@pytest.mark.parametrize("component", ["text_encoder", "vae_encoder"])
def test_the_graph_runs_when_weights_are_fed_as_inputs(component, tiny):
    model = tiny(component)
    case = Case(3, 24, 8, 9)
    config = model.architecture.config
    feeds = random_inputs(interface_of(model.architecture).inputs, case, config, seed=1)
    session = onnxruntime.InferenceSession(model.graph.data, providers=["CPUExecutionProvider"])
    weights = {value.name: model.parameter(value.name) for value in session.get_inputs()[len(feeds) :]}
    found = session.run(None, feeds | weights)
    for actual, expected in zip(found, run_torch(torch_network(model), feeds), strict=True):
        assert relative_error(actual, expected) <= 1e-5


CHILD = """
import json, logging, sys
from olivelike.graphs.export import export_component
from olivelike.model import Architecture

for line in sys.stdin:
    graph = export_component(Architecture.from_bytes(line.encode()), logging.getLogger("child"))
    print(graph.digest)
"""


@pytest.mark.slow
def test_another_process_in_another_folder_makes_the_same_bytes(tiny, tmp_path):
    """What is fresh and what lies on a shelf, which another process made, are compared by the default suite."""
    model = tiny("text_encoder")
    (tmp_path / "export.py").write_text(CHILD)
    text = model.architecture.to_bytes().decode()
    done = subprocess.run(
        [sys.executable, "export.py"], cwd=tmp_path, input=text, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [model.graph.digest]


def test_a_rule_that_onnxscript_has_no_more_is_an_error(monkeypatch, tiny):
    """Without it graphs would come out otherwise, and nothing would say so."""
    monkeypatch.delattr(rules, "reshape_reshape_rule")
    with pytest.raises(PassError, match=r"onnxscript \S+ has no reshape_reshape_rule, without which"):
        simplify(tiny("text_encoder").graph.to_ir())
