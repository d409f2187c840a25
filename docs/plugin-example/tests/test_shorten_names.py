"""Tests of the pass `shorten_names`."""

import onnx
from olivelike_shorten.shorten_names import ShortenNames

from olivelike.pass_api import Graph, Model
from olivelike.testing import run_pass

TEXT = """
<ir_version: 10, opset_import: ["": 23]>
before (float[N] v0) => (float[N] result) {
    a_very_long_name = Relu(v0)
    another_long_name = Neg(a_very_long_name)
    result = Abs(another_long_name)
}
"""


def test_values_inside_get_short_names_and_the_interface_stays():
    model = Model("unet", graph=Graph(onnx.parser.parse_model(TEXT).SerializeToString()))

    result = run_pass(ShortenNames(), model)

    proto = onnx.load_model_from_string(result.graph.data)
    onnx.checker.check_model(proto, full_check=True)
    assert [node.output[0] for node in proto.graph.node] == ["v1", "v2", "result"]
    assert [value.name for value in proto.graph.input] == ["v0"]
