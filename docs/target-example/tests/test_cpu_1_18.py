"""Tests of the target `cpu_1_18`."""

import onnx
from olivelike_cpu_1_18 import TARGET

from olivelike.model.plugin_targets import find_plugin_target
from olivelike.pass_api import Graph, Model
from olivelike.testing import run_pass
from olivelike.workflow.passes import Registry

TEXT = """
<ir_version: 11, opset_import: ["": 23]>
network (float[N, 4] x, float[4] scale) => (float[N, 4] y) {
    y = RMSNormalization(x, scale)
}
"""


def test_olivelike_finds_it_with_all_claims_sourced():
    found = find_plugin_target("cpu_1_18")
    assert found is not None
    assert (found.origin, found.sources) == ("olivelike-target-cpu-1-18 0.1.0", TARGET.sources)


def test_fuse_writes_what_it_reads():
    model = Model("unet", graph=Graph(onnx.parser.parse_model(TEXT).SerializeToString()))
    fused = run_pass(Registry.built_in().get("fuse").cls(), model, target="cpu_1_18")
    proto = onnx.load_model_from_string(fused.graph.data)
    opset = next(one.version for one in proto.opset_import if one.domain == "")
    assert "RMSNormalization" not in {node.op_type for node in proto.graph.node}
    assert opset <= TARGET.target.opset
    assert proto.ir_version <= TARGET.target.ir_version
