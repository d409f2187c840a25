"""`float16: {auto: true}`: which blocks must stay in float32."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from olivelike.errors import VerificationError
from olivelike.model.graph import block_of
from olivelike.model.targets import find_target
from olivelike.pass_api import Cache, Context
from olivelike.testing import LocalModel, run_pass
from olivelike.testing.models import no_progress
from olivelike.workflow.passes import Registry

BUILT_IN = Registry.built_in()
FLOAT16, FUSE, VERIFY = (BUILT_IN.get(name).cls for name in ("float16", "fuse", "verify"))

RESNET = "decoder.up_blocks.0.resnets.1"
MIDDLE = "decoder.mid_block.resnets.0"


def planted(model, *blocks, scale=1e6):
    """Return a network whose values are beyond float16 in some blocks alone: the norm behind takes them back."""
    loud = {
        name: model.tensors.write(model.parameter(name) * np.float32(scale))
        for name in (f"{block}.conv1.weight" for block in blocks)
    }
    assert max(np.abs(model.tensors.read(tensor)).max() for tensor in loud.values()) > 65504
    weights = model.weights.replace(loud)
    return LocalModel(model.component, model.architecture, weights, model.graph, tensors=model.tensors)


@pytest.fixture(scope="module")
def decoder(little):
    return little("vae_decoder")


@pytest.fixture(scope="module")
def loud(decoder):
    return planted(decoder, RESNET)


def test_a_network_that_float16_holds_stays_whole(decoder):
    found = run_pass(FLOAT16, decoder, target="cuda", auto=True)
    assert found.graph.digest == run_pass(FLOAT16, decoder, target="cuda").graph.digest
    assert found.facts["auto"]["kept_fp32_blocks"] == []
    assert found.facts["auto"]["relative_error"] < 2e-2
    assert found.facts["auto"]["trials"] == 1


def test_a_planted_overflow_is_wrong_in_float16_and_right_in_float32(loud):
    run_pass(VERIFY, loud)
    with pytest.raises(VerificationError, match="vae_decoder: its fp16 graph is further from torch"):
        run_pass(VERIFY, run_pass(FLOAT16, loud, target="cuda"))


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_planted_blocks_are_found_and_repaired(decoder, fused):
    model = planted(decoder, RESNET, MIDDLE)
    if fused:
        model = run_pass(FUSE, model, target="cuda")
    found = run_pass(FLOAT16, model, target="cuda", auto=True, samples=1)
    facts = found.facts["auto"]
    assert {RESNET, MIDDLE} <= set(facts["kept_fp32_blocks"])
    assert len(facts["kept_fp32_blocks"]) <= 4
    assert facts["without"]["relative_error"] is None or facts["without"]["relative_error"] > 2e-2
    assert all(facts["largest_values"][block] > 65504 for block in (RESNET, MIDDLE))
    assert run_pass(VERIFY, found).facts["verification"]["precision"] == "fp16"


def test_the_blocks_can_be_written_into_the_workflow_in_place_of_the_search(loud):
    found = run_pass(FLOAT16, loud, target="cuda", auto=True, samples=1)
    blocks = found.facts["auto"]["kept_fp32_blocks"]
    assert run_pass(FLOAT16, loud, target="cuda", force_fp32_blocks=blocks).graph.digest == found.graph.digest


def test_a_block_around_others_is_kept_without_them(little):
    unet = little("unet")
    scales = {
        "down_blocks.0.resnets.0.conv2": 1e6,  # The skip connection from here is loud,
        "down_blocks.0.downsamplers.0.conv": 1e-6,
        "up_blocks.1.resnets.0.conv_shortcut": 1e-6,  # until here.
    }
    weights = {
        f"{name}.weight": unet.tensors.write(unet.parameter(f"{name}.weight") * np.float32(scale))
        for name, scale in scales.items()
    }
    loud = unet.replace(weights=unet.weights.replace(weights))
    found = run_pass(FLOAT16, loud, target="cuda", auto=True, samples=1)
    blocks = found.facts["auto"]["kept_fp32_blocks"]
    # `up_blocks.1` itself has the operator that joins the skip connection to the rest.
    assert set(blocks) == {
        "down_blocks.0.resnets.0", "down_blocks.0.downsamplers.0", "=up_blocks.1", "up_blocks.1.resnets.0",
    }  # fmt: skip
    assert run_pass(FLOAT16, loud, target="cuda", force_fp32_blocks=blocks).graph.digest == found.graph.digest
    quiet = [node for node in found.graph.to_ir().graph if block_of(node) == "up_blocks.1.resnets.1"]
    assert {node.outputs[0].dtype.name for node in quiet if node.op_type == "Conv"} == {"FLOAT16"}


def test_a_threshold_that_float16_misses_is_met_with_fewer_float16_blocks(decoder):
    plain = run_pass(FLOAT16, decoder, target="cuda", auto=True, samples=1).facts["auto"]["relative_error"]
    limit = plain * 0.8
    found = run_pass(FLOAT16, decoder, target="cuda", auto=True, samples=1, max_relative_error=limit)
    assert found.facts["auto"]["kept_fp32_blocks"]
    assert found.facts["auto"]["relative_error"] <= limit
    assert found.facts["nodes_fp16"] > 0


def test_a_graph_that_is_wrong_before_float16_is_an_error(decoder):
    with pytest.raises(VerificationError, match="before float16 already"):
        run_pass(FLOAT16, decoder, target="cuda", auto=True, samples=1, max_relative_error=1e-9)


class Notebook(Cache):
    def __init__(self):
        self.known = {}

    def get(self, question):
        return self.known.get(str(question))

    def put(self, question, answer):
        assert str(question) not in self.known
        self.known[str(question)] = answer


def test_what_is_remembered_is_not_tried_again(loud, tmp_path, monkeypatch):
    cache = Notebook()

    def search():
        context = Context(
            tmp_path, logging.getLogger("test"), loud.tensors, no_progress, find_target("cuda"), cache=cache
        )
        FLOAT16(auto=True, samples=1).chosen().run(loud, context)
        return context.reported

    first = search()
    assert len(cache.known) == first["auto"]["trials"] + 1  # and how far values reach
    monkeypatch.setattr("olivelike.measure.verify.float_search.Original", None)
    assert search() == first


def test_only_a_search_reads_the_weights():
    assert "weights" not in FLOAT16().reads
    assert "weights" not in FLOAT16.reads
    searching = FLOAT16(auto=True).chosen()
    assert FLOAT16().chosen() == FLOAT16()
    assert searching.name() == "float16"
    assert searching.model_dump() == FLOAT16(auto=True).model_dump()
    assert "weights" in searching.reads
    assert searching.resources.memory_bytes > FLOAT16.resources.memory_bytes
    assert searching.optional == ()
