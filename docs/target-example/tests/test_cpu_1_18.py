"""Tests of the target `cpu_1_18`."""


import onnx
from olivelike_cpu_1_18 import TARGET

from olivelike.model.plugin_targets import find_plugin_target
from olivelike.pass_api import Graph, Model
from olivelike.testing import run_pass
from olivelike.workflow.passes import Registry

TEXT = """
<ir_version: 11, opset_import: ["": 23]>
network (float[N, 4] x) => (float[N, 4] y) <float factor, float[N, 4] scaled, float[N, 4] gate> {
    factor = Constant <value = float {1.702}> ()
    scaled = Mul(x, factor)
    gate = Sigmoid(scaled)
    y = Mul(x, gate)
}
"""


def test_olivelike_finds_it_with_all_claims_sourced():
    found = find_plugin_target("cpu_1_18")
    assert found is not None
    assert (found.origin, found.sources) == ("olivelike-cpu-1-18 0.1.0", TARGET.sources)


def test_fuse_writes_what_it_reads():
    model = Model("unet", graph=Graph(onnx.parser.parse_model(TEXT).SerializeToString()))
    fused = run_pass(Registry.built_in().get("fuse").cls(), model, target="cpu_1_18")
    proto = onnx.load_model_from_string(fused.graph.data)
    opset = next(one.version for one in proto.opset_import if one.domain == "")
    assert "QuickGelu" in {node.op_type for node in proto.graph.node}
    assert (opset <= 21, proto.ir_version <= 10) == (True, True)
