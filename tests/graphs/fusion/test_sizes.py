"""Graphs for targets that leave arithmetic on sizes to the CPU: none of it is left, and nothing else changes."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from olivelike.passes.float16 import Float16
from olivelike.passes.fuse import Fuse

from olivelike.errors import PassError
from olivelike.graphs.fusion import fuse
from olivelike.model import Graph, Model
from olivelike.model.graph import weight_values
from olivelike.model.targets import TARGETS
from olivelike.testing import run_pass
from tests.fixtures.fusion_networks import ARCHITECTURES

WEBGPU = TARGETS["webgpu"]
WHOLE = {ir.DataType.INT64, ir.DataType.INT32}


def running(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that are left once weights are known."""
    weights = weight_values(model.graph)
    return [node for node in model.graph if node.outputs[0] not in weights]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_sizes_are_read_and_not_computed(network, name: str, precision: str) -> None:
    model = network(name).graph.to_ir()
    facts = fuse(model, WEBGPU, precision=precision)
    nodes = running(model)
    whole = {node.op_type for node in nodes if any(value.dtype in WHOLE for value in node.outputs)}
    assert whole <= {"ArgMax", "Cast", "ReduceMax", "Shape"}
    assert not [node for node in nodes if node.op_type == "Cast" and node.outputs[0].dtype == ir.DataType.INT64]
    # ONNX Runtime moves Transposes behind Shape, and what sorts the sizes then runs on the CPU.
    read = [node.inputs[0].producer() for node in nodes if node.op_type == "Shape"]
    assert not [node.name for node in read if node is not None and node.op_type == "Transpose"]
    assert "GroupNorm" not in facts["operators_after"]
    assert not [
        reason for reasons in facts["left"].values() for reason in reasons if "CPU" in reason or "shape" in reason
    ]


def test_a_mask_that_is_not_causal_stays_and_is_told(network) -> None:
    model = network("text_encoder").graph.to_ir()
    (causal,) = (node for node in model.graph if node.op_type == "LessOrEqual")
    causal.op_type = "GreaterOrEqual"
    facts = fuse(model, WEBGPU, precision="fp32")
    assert facts["left"]["lower"]["an attention mask that is not the causal one is computed on the CPU"] == 2
    assert [node.op_type for node in running(model)].count("GreaterOrEqual") == 1


def test_attention_that_overflows_stays_in_float32_where_it_is_spelled_out(network) -> None:
    small = network("unet")
    fused = run_pass(Fuse, Model("unet", graph=small.graph), target=WEBGPU)
    free = run_pass(Float16, Model("unet", graph=fused.graph), target=WEBGPU)
    plan = Float16(force_fp32=["Attention"]).converts_to()
    forced = run_pass(Fuse, Model("unet", graph=small.graph), target=WEBGPU, precision=plan)
    kept = run_pass(Float16, Model("unet", graph=forced.graph), target=WEBGPU, force_fp32=["Attention"])

    def types(graph: Graph) -> set[ir.DataType | None]:
        return {node.outputs[0].dtype for node in graph.to_ir().graph if node.op_type == "Softmax"}

    assert types(free.require("graph")) == {ir.DataType.FLOAT16}
    assert types(kept.require("graph")) == {ir.DataType.FLOAT}


def test_avoided_operators_are_written_for_who_asks(network) -> None:
    model = Model("unet", graph=network("unet").graph)
    plain = run_pass(Fuse, model, target=WEBGPU)
    asked = run_pass(Fuse, model, target=WEBGPU, write_avoided=["MultiHeadAttention"])
    assert "com.microsoft.MultiHeadAttention" not in plain.facts["operators_after"]
    assert "wrong" in next(iter(plain.facts["left"]["attention"]))
    assert asked.facts["operators_after"]["com.microsoft.MultiHeadAttention"] > 0


def test_what_the_target_does_not_avoid_need_not_be_asked_for(network) -> None:
    model = Model("unet", graph=network("unet").graph)
    with pytest.raises(PassError, match="webgpu does not avoid Gelu; it avoids Attention, MultiHeadAttention, BiasAdd"):
        run_pass(Fuse, model, target=WEBGPU, write_avoided=["Gelu"])
