"""The pass: its options, and what it puts into the run record."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from olivelike.passes.float16 import Float16
from olivelike.passes.fuse import Fuse
from pydantic import ValidationError

from olivelike.errors import PassError, WorkflowError
from olivelike.graphs.fusion.rules import RULES
from olivelike.model import Architecture, Graph, Model
from olivelike.model.targets import find_target
from olivelike.pass_api import Context, PrecisionPlan
from olivelike.workflow import load_workflow


@pytest.fixture
def context(tmp_path):
    return Context(
        scratch=tmp_path,
        logger=logging.getLogger("test"),
        tensors=None,
        progress=lambda done, total: None,
        target=find_target("cuda"),
        precision=PrecisionPlan("fp16", known_overflows=True),
    )


def test_each_rule_has_an_option_of_its_name_and_default():
    options = {name: field.default for name, field in Fuse.model_fields.items() if field.annotation is bool}
    assert options == {rule.name: rule.default for rule in RULES}


def test_an_unknown_option_is_refused():
    with pytest.raises(ValidationError):
        Fuse(packed_vq=True)


def test_the_record_says_what_was_fused_and_left_and_why(context, network):
    model = Model("unet", graph=network("unet").graph)
    result = Fuse(bias_add=False).run(model, context)
    assert result.graph.digest != model.graph.digest
    facts = json.loads(json.dumps(context.reported))
    assert facts["nodes_after"] < facts["nodes_before"]
    assert facts["fused"]["nhwc_conv"] == {"NhwcConv": 18}
    assert "bias_split_gelu" in facts["left"]
    assert "bias_add" not in facts["left"]


def test_attention_that_stays_in_float32_is_not_packed(context, network):
    graph = network("unet").graph
    sd2 = Architecture("unet", "diffusers", "UNet2DConditionModel", {"cross_attention_dim": 1024})
    Fuse().run(Model("unet", architecture=sd2, graph=graph), context)
    assert context.reported["left"]["packed_qkv"] == {"packed MultiHeadAttention is for fp16 only": 2}
    behind = Float16(known_overflows=False).converts_to()
    Fuse().run(Model("unet", architecture=sd2, graph=graph), replace(context, precision=behind))
    assert context.reported["fused"]["packed_qkv"] == {"MultiHeadAttention, packed QKV": 2}
    behind = Float16(force_fp32=("MultiHeadAttention",)).converts_to()
    Fuse().run(Model("unet", graph=graph), replace(context, precision=behind))
    assert "packed_qkv" not in context.reported["fused"]


def test_what_stays_in_float32_is_fused_for_it_whatever_the_target_is_best_at(context, network):
    model = Model("unet", graph=network("unet").graph)
    Fuse().run(model, replace(context, precision=PrecisionPlan()))
    assert "packed_qkv" not in context.reported["fused"]


@pytest.mark.parametrize("option", ["precision", "force_fp32", "known_overflows"])
def test_what_fuse_was_told_once_is_refused_with_the_remedy(option, tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text(
        f"source: a/b\ntarget: cuda\ncomponents: {{unet: [convert, fuse: {{{option}: fp32}}]}}\noutput: o\n"
    )
    with pytest.raises(
        WorkflowError, match=rf"w\.yaml:3:\d+: '{option}' is no longer one of the options of fuse: it is known"
    ):
        load_workflow(str(file))


def test_every_rule_is_documented():
    guide = (Path(__file__).parents[3] / "docs" / "fusion.md").read_text(encoding="utf-8")
    assert all(f"| `{rule.name}` |" in guide for rule in RULES)


def test_a_graph_with_values_of_unknown_shape_is_refused(context):
    text = """<ir_version: 10, opset_import: ["" : 23, "foreign" : 1]>
    agraph (float[1, 4] x) => (float[1, 4] y) {
        hidden = foreign.Mystery(x)
        y = Identity(hidden)
    }"""
    graph = Graph.from_ir(ir.serde.deserialize_model(onnx.parser.parse_model(text)))
    with pytest.raises(PassError, match="type or shape of 'hidden'.*leave `fuse` out"):
        Fuse().run(Model(component="unet", graph=graph), context)
