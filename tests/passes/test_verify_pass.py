"""The pass `verify`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from pydantic import ValidationError

from olivelike.errors import PassError, UsageError, VerificationError
from olivelike.measure.network_sizes import CASES
from olivelike.model import Graph
from olivelike.model.graph import PARAMETER_KEY
from olivelike.pass_api import LoraInput, Pass
from olivelike.testing import compare_with_torch, run_pass
from olivelike.testing.lora_files import make_lora
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model

BUILT_IN = Registry.built_in()
VERIFY, FUSE, FLOAT16, BFLOAT16, MERGE = (
    BUILT_IN.get(name).cls for name in ("verify", "fuse", "float16", "bfloat16", "merge_lora")
)


@pytest.fixture(scope="module")
def decoder(one_torch_thread):
    return little_model("sd", "vae_decoder")


def without_biases(model):
    """Return the model with each bias of a convolution left out."""
    graph = model.graph.to_ir()
    for node in graph.graph:
        if node.op_type == "Conv" and len(node.inputs) == 3:
            node.replace_input_with(2, None)
    return model.replace(graph=Graph.from_ir(graph))


def test_the_model_comes_back_as_it_was_and_figures_go_into_the_record(decoder):
    result = run_pass(VERIFY, decoder)
    assert result.digests() == decoder.digests()
    found = result.facts["verification"]
    assert 0 < found["relative_error"] < 1e-5
    assert 0 < found["worst"] < 1e-4
    assert 0.999999 < found["cosine"] <= 1.0000001
    assert (found["nan"], found["inf"]) == (0, 0)
    assert (found["precision"], found["limit"], found["passed"]) == ("fp32", 1e-4, True)
    assert [list(sample["outputs"]) for sample in found["samples"]] == [["sample"]] * 2
    assert len({sample["case"] for sample in found["samples"]}) == 2


def test_half_precision_has_a_limit_of_its_own(decoder):
    half = run_pass(FLOAT16, run_pass(FUSE, decoder, target="cuda"), target="cuda")
    found = run_pass(VERIFY, half).facts["verification"]
    assert (found["precision"], found["limit"]) == ("fp16", 2e-2)
    assert 1e-5 < found["relative_error"] < 2e-2


def test_dropped_biases_are_caught(decoder):
    with pytest.raises(VerificationError) as caught:
        run_pass(VERIFY, without_biases(decoder))
    message = str(caught.value)
    assert message.startswith("vae_decoder: its fp32 graph is further from torch than 1.0e-04:")
    assert "sample at batch 1, 16x40, sequence 50, seed 0: relative error" in message
    found = caught.value.facts["verification"]
    assert not found["passed"]
    assert found["relative_error"] > 1e-2


def test_dropped_biases_are_caught_in_half_precision_too(decoder):
    with pytest.raises(VerificationError):
        run_pass(VERIFY, run_pass(FLOAT16, without_biases(decoder), target="cuda"))


def test_what_is_not_finite_is_refused_whatever_the_limit_and_its_origin_is_named(decoder):
    name = "decoder.up_blocks.0.resnets.1.conv2.weight"
    weights = decoder.weights.replace({name: decoder.tensors.write(decoder.parameter(name) * np.float32(1e9))})
    half = run_pass(FLOAT16, decoder.replace(weights=weights), target="cuda")
    with pytest.raises(VerificationError, match="comes from Conv in decoder.up_blocks.0.resnets.1.conv2"):
        run_pass(VERIFY, half, max_relative_error=1e9)


def test_the_origin_of_an_infinity_in_bfloat16_is_named_too(decoder):
    name = "decoder.up_blocks.0.resnets.1.conv2.weight"
    loud = decoder.tensors.write(decoder.parameter(name) * np.float32(1e38) * np.float32(20))
    half = run_pass(BFLOAT16, decoder.replace(weights=decoder.weights.replace({name: loud})), target="openvino")
    with pytest.raises(VerificationError, match="comes from Conv in decoder.up_blocks.0.resnets.1.conv2"):
        run_pass(VERIFY, half, max_relative_error=1e9, samples=1)


def test_the_limit_can_be_set(decoder):
    with pytest.raises(VerificationError, match=r"further from torch than 1.0e-12"):
        run_pass(VERIFY, decoder, max_relative_error=1e-12)
    run_pass(VERIFY, without_biases(decoder), max_relative_error=1e3)


def test_equal_seeds_give_equal_figures_and_others_others(decoder):
    def figures(**options):
        return run_pass(VERIFY, decoder, **options).facts["verification"]["samples"]

    assert figures(seed=3) == figures(seed=3)
    assert figures(seed=3)[1]["seed"] == 4
    assert figures(samples=1)[0] == figures()[0]
    assert figures(samples=1, seed=3) != figures(samples=1)


class Prune(Pass):
    """Set the smaller half of one matrix to zero."""

    reads: ClassVar = ("weights",)
    writes: ClassVar = ("weights",)

    def run(self, model, context):
        name = next(name for name, tensor in sorted(model.weights.items()) if len(tensor.shape) > 1)
        array = context.tensors.read(model.weights[name])
        array = np.where(np.abs(array) < np.median(np.abs(array)), np.float32(0), array)
        return model.replace(weights=model.weights.replace({name: context.tensors.write(array)}))


@pytest.fixture(scope="module")
def pruned(decoder):
    return run_pass(Prune, decoder)


def test_what_a_pass_did_to_the_weights_is_a_difference(pruned):
    with pytest.raises(VerificationError, match="its fp32 graph is further from torch"):
        run_pass(VERIFY, pruned)
    figures = run_pass(VERIFY, pruned, max_relative_error=1.0).facts["verification"]
    assert 1e-3 < figures["relative_error"] < 1


def test_a_pruned_network_is_not_compared_with_itself(pruned, decoder):
    with pytest.raises(UsageError, match="compared with themselves they would always be right; name the model before"):
        compare_with_torch(pruned)
    assert compare_with_torch(pruned, reference=decoder, cases=CASES[:1]).worst > 1e-3


def test_a_lora_that_was_merged_is_no_difference(one_torch_thread, tmp_path):
    encoder = little_model("sd", "text_encoder")
    shapes = {"text_encoder": {name: tensor.shape for name, tensor in encoder.weights.items()}}
    path = make_lora(tmp_path / "style.safetensors", "kohya", base=shapes, components=("text_encoder",))
    merged = run_pass(MERGE, encoder, loras=[LoraInput(path, 1.0)])
    assert merged.weights.digest != encoder.weights.digest
    assert run_pass(VERIFY, merged).facts["verification"]["passed"]
    compare_with_torch(merged, cases=CASES[:1]).require(1e-5)
    assert compare_with_torch(merged, reference=encoder, cases=CASES[:1]).worst > 1e-3
    with pytest.raises(VerificationError):
        run_pass(VERIFY, run_pass(Prune, merged))


def test_an_output_that_the_graph_lacks_counts_as_wrong(decoder):
    graph = decoder.graph.to_ir()
    graph.graph.outputs[0].name = "picture"
    with pytest.raises(VerificationError):
        run_pass(VERIFY, decoder.replace(graph=Graph.from_ir(graph)))


def test_a_parameter_that_the_table_lacks_is_named(decoder):
    weights = type(decoder.weights)({n: t for n, t in decoder.weights.items() if n != "decoder.conv_in.bias"})
    with pytest.raises(PassError, match=r"no parameter 'decoder.conv_in.bias'"):
        run_pass(VERIFY, decoder.replace(weights=weights))
    names = [value.metadata_props.get(PARAMETER_KEY) for value in decoder.graph.to_ir().graph.inputs]
    assert "decoder.conv_in.bias" in names


@pytest.mark.parametrize(
    "options",
    [
        {"max_relative_error": 0},
        {"max_relative_error": -1e-3},
        {"max_relative_error": float("nan")},
        {"max_relative_error": float("inf")},
        {"samples": 0},
        {"samples": 65},
        {"samples": 1.5},
        {"seed": -1},
        {"threshold": 1e-3},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ValidationError):
        VERIFY(**options)


def test_it_needs_a_torch_network_and_a_graph():
    assert VERIFY.reads == ("architecture", "weights", "graph", "original")
    assert VERIFY.writes == ()
    assert VERIFY.optional == ()
