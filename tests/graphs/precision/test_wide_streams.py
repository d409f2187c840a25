"""Transformers in float16 with weights whose streams leave its range, operator by operator, against torch."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from olivelike.families import half_policy
from olivelike.families.family import HalfPolicy
from olivelike.families.networks import interface_of
from olivelike.graphs.fusion import fuse
from olivelike.graphs.inspect.placement import left_to_cpu
from olivelike.graphs.precision import HalfPrecision
from olivelike.graphs.wide_streams import SHARE
from olivelike.measure.network_sizes import Case, random_inputs
from olivelike.measure.verify.evaluation import Evaluation
from olivelike.measure.verify.original import Reference, relative_error
from olivelike.model import Graph
from olivelike.model.graph import BLOCK_KEY
from olivelike.model.targets import TARGETS, find_target
from olivelike.testing.models import load_model, traced_graph
from tests.fixtures.little_transformers import little_transformer

if TYPE_CHECKING:
    from olivelike.measure.verify.evaluation import Observer

MOST = float(np.finfo(np.float16).max)
CASE = Case(2, 4, 6, 9)
SUMS, LAYERS, PRODUCTS = "sums", "layers", "products"
OVERFLOWING = {
    ("flux", "transformer"): (
        {"*_blocks.*.net.0.proj.*": 1e2, "*.proj_mlp.*": 1e2, "*_blocks.*.net.2.*": 2e4, "single*.proj_out.*": 2e4},
        {SUMS: {"transformer_blocks.?", "single_transformer_blocks.?"}},
    ),
    ("flux2", "transformer"): (
        {"*.linear_in.weight": 30.0, "*_mlp_proj.weight": 30.0, "*.linear_out.weight": 3e3, "s*.to_out.weight": 3e3},
        {SUMS: {"transformer_blocks.?", "single_transformer_blocks.?"}},
    ),
    ("qwen_image", "transformer"): (
        {"*_mlp.net.0.proj.*": 1e2, "*_mlp.net.2.*": 2e4},
        {SUMS: {"transformer_blocks.?"}},
    ),
    ("z_image", "transformer"): (
        {"*.feed_forward.w[13].weight": 600.0, "*.feed_forward.w2.weight": 20.0, "*.to_[vV].weight": 1e3,
         "*.to_out.0.weight": 3e3},
        {PRODUCTS: {"layers.?.feed_forward"}, LAYERS: {"layers.?.feed_forward.w2", "layers.?.attention.to_out.0"}},
    ),
    ("sd3", "text_encoder_3"): (
        {"*.wi_0.weight": 10.0, "*.wi_1.weight": 10.0, "*.wo.weight": 3e3},
        {SUMS: {"encoder.block.?.layer.1"}, LAYERS: {"encoder.block.?.layer.1.DenseReluDense.wo"}},
    ),
    ("z_image", "text_encoder"): (
        {"*.up_proj.weight": 1e3, "*.gate_proj.weight": 1e2, "*.down_proj.weight": 300.0},
        {SUMS: {"layers.?"}, LAYERS: {"layers.?.mlp.down_proj"}},
    ),
    ("qwen_image", "text_encoder"): (
        {"*.up_proj.weight": 1e3, "*.gate_proj.weight": 1e2, "*.down_proj.weight": 1e4},
        {SUMS: {"model.language_model.layers.?"}, LAYERS: {"model.language_model.layers.?.mlp.down_proj"}},
    ),
}  # fmt: skip
"""Network → factors of its weights, and where values then leave float16's range: kind of operator → modules."""
PLAIN = (
    ("sd3", "transformer"), ("sd3", "text_encoder"), ("sd3", "text_encoder_2"), ("flux2", "text_encoder"),
    ("flux", "vae_decoder"), ("flux", "vae_encoder"), ("flux2", "vae_decoder"), ("qwen_image", "vae_decoder"),
)  # fmt: skip
"""Networks of which nothing is known to overflow."""
HALF_TARGETS = sorted(name for name, target in TARGETS.items() if target.precision == "fp16")


class Scaled:
    """A network of a little pipeline with some of its weights scaled, and what torch makes of it in float64."""

    def __init__(self, family: str, component: str, factors: Mapping[str, float] = MappingProxyType({})) -> None:
        self.model = load_model(little_transformer(family), component)
        self.architecture = self.model.architecture
        self.factors = factors
        self.graph = traced_graph(self.architecture)
        interface = interface_of(self.architecture)
        self.feeds = random_inputs(interface.inputs, CASE, self.architecture.config, 0)
        outputs = Reference(self.architecture, self.parameter)(self.feeds, {})
        self.expected = dict(zip(interface.outputs, outputs, strict=True))

    def parameter(self, name: str) -> np.ndarray:
        factor = next((factor for one, factor in self.factors.items() if fnmatch.fnmatchcase(name, one)), 1.0)
        found = self.model.parameter(name).astype(np.float32) * np.float32(factor)
        assert np.abs(found).max() < MOST  # Other weights would not be those that torch has.
        return found

    def run(self, model: ir.Model, observe: Observer | None = None) -> dict[str, np.ndarray]:
        return Evaluation(model, parameter=self.parameter).run(self.feeds, observe)

    def largest(self) -> Counter[tuple[str, str]]:
        """Return the largest number that each module's operators give in float32."""
        found: Counter[tuple[str, str]] = Counter()
        kinds = {"Add": SUMS, "MatMul": LAYERS, "Mul": PRODUCTS}

        def observe(node, operands, outputs):
            if node.op_type in kinds:
                place = kinds[node.op_type], node.metadata_props.get(BLOCK_KEY, "")
                found[place] = max(found[place], float(np.abs(outputs[0]).max()))

        self.run(self.graph.to_ir(), observe)
        return found

    def in_float16(self, target: str, policy: HalfPolicy) -> tuple[float, dict[str, int]]:
        """Return the error of the graph in float16, fused for a target, and what its conversion counted."""
        model = self.graph.to_ir()
        fuse(model, find_target(target), {}, "fp16", policy.operators)
        half = HalfPrecision(
            model, policy_operators=policy.operators, streams=policy.streams, target=find_target(target)
        )
        counts = half.convert()
        given = self.run(model)
        # What leaves the network in float16 ends where its numbers do.
        errors = [relative_error(given[name], np.clip(one, -MOST, MOST)) for name, one in self.expected.items()]
        return max(errors, key=lambda error: np.inf if np.isnan(error) else error), counts


@cache
def scaled(family: str, component: str) -> Scaled:
    factors, _ = OVERFLOWING.get((family, component), ({}, {}))
    return Scaled(family, component, factors)


@pytest.mark.parametrize("network", OVERFLOWING, ids="-".join)
def test_weights_of_these_tests_leave_the_range_of_float16_where_diffusers_clips(network):
    largest = scaled(*network).largest()
    for kind, modules in OVERFLOWING[network][1].items():
        for module in modules:
            found = {
                path: value for (one, path), value in largest.items() if one == kind and fnmatch.fnmatch(path, module)
            }
            assert 1.5 * MOST < max(found.values()) < MOST / SHARE, (kind, found)
    error, _ = scaled(*network).in_float16("cuda", HalfPolicy())
    assert not error < 0.1  # It may be no number.


@pytest.mark.parametrize("target", ["cuda", *(pytest.param(one, marks=pytest.mark.slow) for one in HALF_TARGETS)])
@pytest.mark.parametrize("network", [*OVERFLOWING, *PLAIN], ids="-".join)
def test_float16_is_as_torch_where_streams_leave_its_range(network, target):
    made = scaled(*network)
    policy = half_policy(made.architecture)
    error, counts = made.in_float16(target, policy)
    assert error <= 3e-3
    assert (counts.get("layers_on_a_part", 0) > 0) == bool(policy.streams)


@pytest.mark.parametrize("network", OVERFLOWING, ids="-".join)
def test_bfloat16_runs_on_cuda_as_a_whole_and_holds_every_stream(network):
    made, model, cuda = scaled(*network), scaled(*network).graph.to_ir(), find_target("cuda")
    fuse(model, cuda, {}, "bf16")
    counts = HalfPrecision(model, half=ir.DataType.BFLOAT16, keep_io=True, target=cuda).convert()
    onnx.checker.check_model(Graph.from_ir(model).data, full_check=True)
    assert counts["nodes_bf16"] > 3 * counts.get("nodes_fp32", 0)
    assert left_to_cpu(model, cuda) == ()
    given = made.run(model)
    assert max(relative_error(given[name], one) for name, one in made.expected.items()) <= 0.05
