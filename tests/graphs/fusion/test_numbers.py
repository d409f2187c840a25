"""Every rule, on every network, against torch."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from fusion_running import any_width, relative_error, run, session

from olivelike.graphs.fusion import fuse
from olivelike.graphs.fusion.rules import RULES
from olivelike.graphs.precision import HalfPrecision
from olivelike.model import Graph
from olivelike.model.targets import TARGETS, find_target
from tests.fixtures.fusion_networks import ARCHITECTURES

ALL_ON = {rule.name: True for rule in RULES} | {"fast_gelu": False}
NONE_ON = dict.fromkeys(ALL_ON, False)


def assert_same_numbers(graph: Graph, network, cases=(0, 1), limit=1e-5):
    for shapes, error in compared(graph, network, cases):
        assert shapes[0] == shapes[1]
        assert error <= limit


@cache
def compared(graph: Graph, network, cases):
    """Return shapes and relative error of each output; many targets and switches give equal graphs."""
    opened, found = session(graph), []
    for case in cases:
        actual = run(opened, {**network.feeds[case], **network.weights})
        for value, expected in zip(actual, network.expected[case], strict=True):
            error = relative_error(value, expected) if value.shape == expected.shape else np.inf
            found.append(((value.shape, expected.shape), error))
    return found


def fused(network, target, switches=None):
    model = network.graph.to_ir()
    facts = fuse(model, any_width(target), switches)
    return Graph.from_ir(model), facts


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one == "sdxl_unet" else ()) for one in ARCHITECTURES]
)
def test_each_rule_keeps_the_numbers_of_the_network(name, network):
    model = network(name).graph.to_ir()
    written = set()
    for rule in RULES:
        if not ALL_ON[rule.name]:
            continue
        facts = fuse(model, any_width("cuda"), NONE_ON | {rule.name: True})
        if rule.name in facts["fused"]:
            written.add(rule.name)
            assert_same_numbers(Graph.from_ir(model), network(name))
    assert len(written) >= 6


IMAGE_RULES = ("image_tokens", "group_norm", "group_norm_silu", "skip_group_norm", "nhwc_conv", "transposes")


@pytest.mark.parametrize(
    ("off", "name"),
    [*((rule.name, "unet") for rule in RULES if rule.default), *((rule, "vae_decoder") for rule in IMAGE_RULES)],
)
def test_any_rule_can_be_switched_off(off, name, network):
    graph, facts = fused(network(name), "cuda", {off: False})
    assert off not in facts["fused"]
    assert_same_numbers(graph, network(name), cases=(1,))


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *((target, "unet") for target in TARGETS), ("cpu", "vae_decoder"), ("cuda", "vae_decoder"),
        ("webgpu", "vae_decoder"), ("cpu", "text_encoder"),
        *(pytest.param(target, name, marks=pytest.mark.slow)
          for name, shown in (("vae_decoder", ("cpu", "cuda", "webgpu")), ("text_encoder", ("cpu",)))
          for target in TARGETS if target not in shown),
    ],
)  # fmt: skip
def test_every_target_gets_operators_that_it_runs_and_the_numbers_of_the_network(target, name, network):
    graph, _ = fused(network(name), target)
    model, found = graph.to_ir(), find_target(target)
    contrib = {node.op_type for node in model.graph if node.domain == "com.microsoft"}
    standard = {node.op_type for node in model.graph if not node.domain}
    assert all(found.kernel(operator) for operator in contrib)
    assert "Attention" not in standard or found.kernel("ai.onnx.Attention")
    assert "GroupNormalization" not in standard or found.kernel("GroupNormalization")
    assert model.opset_imports[""] <= found.opset
    assert model.ir_version <= found.ir_version
    assert_same_numbers(graph, network(name), cases=(1,))


@pytest.mark.parametrize("name", ["unet", "vae_decoder", "text_encoder", "text_encoder_2"])
def test_half_precision_behind_fusion_stays_close_to_torch(name, network):
    model = network(name).graph.to_ir()
    fuse(model, any_width("cuda"))
    HalfPrecision(model, keep_io=True, forced_operators=(), forced_blocks=()).convert()
    assert_same_numbers(Graph.from_ir(model), network(name), limit=1e-2)


def test_fast_gelu_is_close_to_gelu(network):
    graph, facts = fused(network("text_encoder_2"), "cuda", {"fast_gelu": True})
    assert facts["fused"]["fast_gelu"] == {"FastGelu": 2}
    assert_same_numbers(graph, network("text_encoder_2"), limit=2e-3)


def test_inputs_are_random_and_outputs_are_not_trivial(network):
    for expected in network("unet").expected:
        assert np.std(expected[0]) > 0.1
