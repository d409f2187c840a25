"""The pass `bfloat16`: its interface, its numbers and where it is refused; more in `test_half.py`."""

from __future__ import annotations

import onnx
import pytest

from olivelike.errors import PassError
from olivelike.model.targets import TARGETS
from olivelike.testing import run_pass
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model

BUILT_IN = Registry.built_in()
BFLOAT16, FUSE, VERIFY = (BUILT_IN.get(name).cls for name in ("bfloat16", "fuse", "verify"))


@pytest.fixture
def fused(tiny):
    return run_pass(FUSE, tiny("text_encoder"), target="openvino")


def test_the_interface_stays_in_float32_and_weights_where_they_are(fused):
    result = run_pass(BFLOAT16, fused, target="openvino")
    assert result.weights is fused.weights
    onnx.checker.check_model(result.graph.data, full_check=True)
    before, after = fused.graph.to_ir().graph, result.graph.to_ir().graph
    assert [(value.name, value.dtype) for value in (*after.inputs, *after.outputs)] == [
        (value.name, value.dtype) for value in (*before.inputs, *before.outputs)
    ]
    inner = {value.dtype.name for node in after if node.op_type == "MatMul" for value in node.outputs}
    assert inner == {"BFLOAT16"}


def test_facts_count_the_nodes_of_each_precision(fused):
    nodes = run_pass(BFLOAT16, fused, target="openvino").facts["nodes_bf16"]
    facts = run_pass(BFLOAT16, fused, target="openvino", force_fp32=["LayerNormalization"]).facts
    assert (facts["nodes_bf16"] + facts["nodes_fp32"], facts["nodes_fp32"] > 6) == (nodes, True)
    blocks = run_pass(BFLOAT16, fused, target="openvino", force_fp32_blocks=["encoder.layers.0"]).facts
    assert blocks["nodes_fp32"] > 20


def test_an_unknown_block_is_refused(fused):
    with pytest.raises(PassError, match=r"no block matches 'encoder.layer.0'; did you mean 'encoder.layers.0"):
        run_pass(BFLOAT16, fused, target="openvino", force_fp32_blocks=["encoder.layer.0"])


@pytest.mark.parametrize("second", ["float16", "bfloat16"])
def test_one_half_precision_does_not_follow_the_other(fused, second):
    first = {"float16": "bfloat16", "bfloat16": "float16"}[second]
    half = run_pass(BUILT_IN.get(first).cls, fused, target="openvino")
    assert run_pass(BUILT_IN.get(first).cls, half, target="openvino").graph == half.graph
    with pytest.raises(PassError, match=f"the graph is in {first} already"):
        run_pass(BUILT_IN.get(second).cls, half, target="openvino")


@pytest.mark.parametrize("component", ["text_encoder", "unet", "vae_decoder", "safety_checker"])
def test_it_stays_as_near_to_torch_as_the_type_allows(tiny, component):
    model = little_model("attending", "unet") if component == "unet" else tiny(component)
    result = run_pass(BFLOAT16, run_pass(FUSE, model, target="openvino"), target="openvino")
    found = run_pass(VERIFY, result, samples=1).facts["verification"]
    assert (found["precision"], found["limit"], found["passed"]) == ("bf16", 0.16, True)
    assert found["relative_error"] < 0.05


def test_targets_without_it_refuse_it():
    refusals = {name: BFLOAT16().unsupported_reason(target) for name, target in TARGETS.items()}
    assert [name for name, refusal in refusals.items() if refusal is None] == ["openvino", "cuda"]
    assert refusals["tensorrt"] == (
        "target 'tensorrt' runs no graphs in bfloat16; use `float16`, or target `cuda` or `openvino`"
    )
