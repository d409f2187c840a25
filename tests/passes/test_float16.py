"""The pass `float16`: its options; what it does to a graph is tested with `olivelike.graphs.precision`."""

from __future__ import annotations

import onnx
import pytest

from olivelike.errors import PassError
from olivelike.testing import run_pass
from olivelike.workflow.passes import Registry

FLOAT16 = Registry.built_in().get("float16").cls


@pytest.fixture
def model(tiny):
    return tiny("text_encoder")


def half(model, **options):
    return run_pass(FLOAT16, model, target="cpu", **options)


def types(graph):
    return {value.name: value.dtype.name for node in graph for value in node.outputs}


def test_parameters_are_cast_and_weights_stay_where_they_are(model):
    result = half(model)
    assert result.weights is model.weights
    onnx.checker.check_model(result.graph.data, full_check=True)
    assert {value.dtype.name for value in result.graph.to_ir().graph.outputs} == {"FLOAT16"}


def test_facts_count_the_nodes_of_each_precision(model):
    assert half(model).facts == {"nodes_fp16": 107}
    # The eighth: the pooled output is picked from the last normalisation's result.
    assert half(model, force_fp32=["LayerNormalization"]).facts == {"nodes_fp16": 99, "nodes_fp32": 8}


def test_keep_io_leaves_the_interface_as_it_was(model):
    before, after = (value.graph.to_ir().graph for value in (model, half(model, keep_io=True)))
    assert [(value.name, value.dtype) for value in after.outputs] == [(v.name, v.dtype) for v in before.outputs]


def test_blocks_by_wildcard_stay_in_float32(model):
    graph = half(model, force_fp32_blocks=["encoder.layers.*.mlp"]).graph.to_ir().graph
    kept = [node for node in graph if node.op_type == "Sigmoid"]
    assert [node.outputs[0].dtype.name for node in kept] == ["FLOAT"] * 3


def test_a_block_can_be_named_without_those_inside_it(model):
    whole = half(model, force_fp32_blocks=["encoder.layers.0"])
    assert half(model, force_fp32_blocks=["=encoder.layers.0"]).graph == whole.graph
    with pytest.raises(PassError, match="no block matches '=encoder'"):
        half(model, force_fp32_blocks=["=encoder"])
    assert half(model, force_fp32_blocks=["encoder"]).facts["nodes_fp32"] > 50


def test_a_second_time_changes_nothing(model):
    once = half(model)
    assert half(once).graph == once.graph


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"force_fp32": ["LayerNormalisation"]}, "no operator 'LayerNormalisation'; did you mean 'LayerNormalization'"),
        (
            {"force_fp32_blocks": ["encoder.layer.0"]},
            "no block matches 'encoder.layer.0'; did you mean 'encoder.layers.0",
        ),
    ],
)
def test_a_name_that_the_graph_does_not_know_fails_with_the_nearest(model, options, message):
    with pytest.raises(PassError, match=message):
        half(model, **options)
